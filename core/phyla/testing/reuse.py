"""Engines that keep prefixes, and a count of what their forwards saw.

with reusing(toy_spec("FS", {"prefill_chunk": 16})) as (engine, log, seen):
    ...
    assert seen.num_tokens == len(prompt) - num_cached + max_tokens - 1
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from phyla.engine.engine import Engine, EngineSpec, Loaded
from phyla.engine.indexed_reuse import IndexedReuse, WantedSet
from phyla.kv.prefix import PrefixIndex, PrefixNamespace, TokenMemory
from phyla.kv.row_state import RowState
from phyla.model.binding import Forward, LayerStates, ModelBinding
from phyla.model.step import StepInput
from phyla.testing.engines import EventLog, plain_state, running


@dataclass
class Seen:
    """What forwards were given."""

    steps: list[int] = field(default_factory=list)
    """Real tokens of each step, all rows together."""

    @property
    def num_tokens(self) -> int:
        return sum(self.steps)


def with_reuse(
    spec: EngineSpec,
    *,
    seen: Seen | None = None,
    budget_bytes: int = 1 << 30,
    index_options: Mapping[str, Any] | None = None,
    **reuse_options: Any,
) -> EngineSpec:
    """The spec with plain storage and a prefix index; a draft method that it has keeps its states there too.

    Args:
        spec: of any model that stores plainly.
        seen: counts what its forwards are given.
        budget_bytes: of the index.
        index_options: further arguments of `PrefixIndex`.
        reuse_options: further arguments of `IndexedReuse`.
    """

    def load() -> Loaded:
        loaded = spec.load()
        if seen is not None:
            _count(loaded.binding, seen)
        reuse = IndexedReuse(
            new_state=lambda: RowState.fresh(spec.facts.layout, plain_state),
            index=PrefixIndex(budget_bytes, **(index_options or {})),
            namespace=PrefixNamespace("test", "plain", "test"),
            chunk_tokens=spec.admission.fit.chunk_tokens,
            memory=TokenMemory(spec.tokenizer),
            draft=WantedSet.of(loaded.drafting),
            **reuse_options,
        )
        return replace(loaded, reuse=reuse)

    return replace(spec, load=load)


@contextmanager
def reusing(spec: EngineSpec, **options: Any) -> Iterator[tuple[Engine, EventLog, Seen]]:
    """A running engine with a prefix index. Options as `with_reuse`."""
    seen = Seen()
    with running(with_reuse(spec, seen=seen, **options)) as (engine, log):
        yield engine, log, seen


def prompt_cache(engine: Engine) -> Mapping[str, Any]:
    """The engine's `prompt_cache` counters."""
    stats: Mapping[str, Any] = engine.stats()["prompt_cache"]
    return stats


def _count(binding: ModelBinding, seen: Seen) -> None:
    start = binding.start

    def counting_start(step: StepInput, states: LayerStates) -> Forward:
        seen.steps.append(sum(step.num_real))
        return start(step, states)

    binding.start = counting_start  # type: ignore[method-assign]
