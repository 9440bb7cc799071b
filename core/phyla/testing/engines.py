"""Engines over models made in a test, and a log of what they say."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from phyla.backend.device import BackendFacts
from phyla.checkpoint.folder import FolderCheckpoint
from phyla.engine.admission import Admission
from phyla.engine.engine import Engine, EngineSpec, Loaded
from phyla.engine.memory import FitEquation
from phyla.engine.reuse import NoReuse
from phyla.engine.settings import EngineSettings
from phyla.kv.layer_spec import LayerSpec
from phyla.kv.plain import create_plain, plain_bytes_per_token
from phyla.kv.row_state import RowState
from phyla.kv.state import LayerState
from phyla.model.binding import ModelBinding
from phyla.model.facts import ModelFacts
from phyla.model.family import Family
from phyla.request import EngineEvent, Failed, Finished, Rendered, Request, SamplingParams, Token
from phyla.testing.scripted import CharacterTokenizer, ScriptedBinding
from phyla.testing.stepping import load_options
from phyla.testing.toy import ToyConfig, toy_binding, toy_config, toy_facts
from phyla.tokenizer import Tokenizer

TEST_BACKEND = BackendFacts("cpu", "test", "test", memory_bytes=1 << 34, working_set_bytes=1 << 34)
TOY_VOCAB = 512
"""Ids of `toy_spec`'s toys: bytes, one that ends, and words."""

PATIENCE_SECONDS = 200.0
"""How long a log waits for something that must happen; reached only by a bug, on a machine however busy."""


def plain_state(layer: LayerSpec) -> LayerState:
    """An empty plain state, whatever the device."""
    return create_plain(layer, TEST_BACKEND, "float32")


def engine_spec(
    facts: ModelFacts,
    bind: Callable[[], ModelBinding],
    tokenizer: Tokenizer,
    settings: Mapping[str, Any] | None = None,
    **changes: Any,
) -> EngineSpec:
    """A spec for a model made by `bind`, with plain storage and no prefix reuse.

    Args:
        facts: of the model.
        bind: called on the engine thread: it couldn't evaluate another thread's lazy arrays.
        tokenizer: of the answers' text.
        settings: fields of `EngineSettings`.
        changes: other fields of `EngineSpec`.
    """
    chosen = EngineSettings(**(settings or {}))
    fit = FitEquation(
        layout=facts.layout,
        bytes_per_token=lambda layer: plain_bytes_per_token(layer, "float32"),
        weight_bytes=facts.weight_bytes.total,
        chunk_tokens=chosen.prefill_chunk or 2048,
        element_bytes=4,
    )
    admission = Admission(
        vocab_size=facts.vocab_size,
        context_limit=min(facts.context_limit, chosen.context_limit or facts.context_limit),
        fit=fit,
        usable_bytes=chosen.memory_budget or TEST_BACKEND.working_set_bytes,
        memory_budget_bytes=chosen.memory_budget,
        kv_budget_bytes=chosen.kv_budget,
        default_max_tokens=chosen.max_tokens,
    )
    spec = EngineSpec(
        model_id="test",
        facts=facts,
        tokenizer=tokenizer,
        admission=admission,
        load=lambda: Loaded(bind(), NoReuse(lambda: RowState.fresh(facts.layout, plain_state))),
        settings=chosen,
    )
    return replace(spec, **changes)


def scripted_spec(
    binding: ScriptedBinding, tokenizer: Tokenizer, settings: Mapping[str, Any] | None = None, **changes: Any
) -> EngineSpec:
    """A spec for a scripted model, which stays in the test's hands."""
    return engine_spec(binding.facts, lambda: binding, tokenizer, settings, **changes)


def toy_spec(layers: str, settings: Mapping[str, Any] | None = None, seed: int = 0, **changes: Any) -> EngineSpec:
    """A spec for a toy of these layers whose vocabulary is a `CharacterTokenizer`'s."""
    tokenizer = CharacterTokenizer(pieces=[f"w{index} " for index in range(TOY_VOCAB - 257)])
    facts = toy_facts(ToyConfig.from_dict(toy_config(layers, vocab_size=tokenizer.vocab_size)))
    return engine_spec(
        facts, lambda: toy_binding(layers, seed, vocab_size=tokenizer.vocab_size), tokenizer, settings, **changes
    )


def family_spec(family: Family, folder: Path, settings: Mapping[str, Any] | None = None, **changes: Any) -> EngineSpec:
    """A spec for a model folder as its family loads it, in float32."""
    checkpoint = FolderCheckpoint.open(folder)
    facts = family.describe(checkpoint)
    return engine_spec(
        facts,
        lambda: family.bind(checkpoint, facts, load_options()),
        checkpoint.tokenizer(),
        settings,
        model_id=checkpoint.model_id,
        **changes,
    )


@contextmanager
def running(spec: EngineSpec, waiting: Sequence[Request] = ()) -> Iterator[tuple[Engine, EventLog]]:
    """A started engine and the log of its events; closed at the end.

    Args:
        spec: of the engine.
        waiting: requests that were submitted before it started, so that they are met all at once.
    """
    engine = Engine(spec)
    log = EventLog()
    engine.subscribe(log)
    for request in waiting:
        engine.submit(request)
    engine.start()
    try:
        yield engine, log
    finally:
        engine.close(PATIENCE_SECONDS)


def a_request(
    request_id: str,
    ids: Sequence[int],
    max_tokens: int | None = None,
    sampling: SamplingParams | None = None,
    **fields: Any,
) -> Request:
    """A request for token ids."""
    return Request(request_id, Rendered(tuple(ids)), sampling or SamplingParams(), max_tokens, **fields)


@dataclass(frozen=True)
class Heard:
    """Everything that was said about one sample."""

    tokens: tuple[Token, ...]
    end: Finished | Failed

    @property
    def ids(self) -> list[int]:
        return [token.token_id for token in self.tokens]

    @property
    def text(self) -> str:
        """As a reader would see it: control tokens dropped."""
        tail = self.end.text if isinstance(self.end, Finished) else ""
        return "".join(token.text for token in self.tokens if not token.special) + tail

    @property
    def finished(self) -> Finished:
        assert isinstance(self.end, Finished), self.end
        return self.end

    @property
    def failed(self) -> Failed:
        assert isinstance(self.end, Failed), self.end
        return self.end


class CountedTime:
    """An engine's clock that moves on when it is looked at: what is paced by measured seconds is then the same in every
    run, on any machine.
    """

    def __init__(self, seconds_per_look: float = 0.01) -> None:
        self._seconds_per_look = seconds_per_look
        self._looks = 0

    def __call__(self) -> float:
        self._looks += 1
        return self._looks * self._seconds_per_look


class EventLog:
    """A sink that remembers everything; `wait` blocks until it was said."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self.batches: list[list[EngineEvent]] = []

    def __call__(self, events: Sequence[EngineEvent]) -> None:
        with self._condition:
            self.batches.append(list(events))
            self._condition.notify_all()

    @property
    def events(self) -> list[EngineEvent]:
        with self._condition:
            return [event for batch in self.batches for event in batch]

    def of(self, request_id: str, sample: int = 0) -> list[EngineEvent]:
        """What was said about one sample so far, `Started` left out."""
        return [
            event
            for event in self.events
            if event.request_id == request_id
            and isinstance(event, Token | Finished | Failed)
            and event.sample == sample
        ]

    def wait(self, request_id: str, sample: int = 0) -> Heard:
        """Block until the sample has ended."""
        self._wait_for(lambda: any(isinstance(one, Finished | Failed) for one in self.of(request_id, sample)))
        said = self.of(request_id, sample)
        end = said[-1]
        assert isinstance(end, Finished | Failed), "something was said after the end"
        return Heard(tuple(event for event in said if isinstance(event, Token)), end)

    def wait_for_tokens(self, request_id: str, num_tokens: int) -> None:
        """Block until so many tokens of the request's first sample have arrived, or it has ended."""
        self._wait_for(
            lambda: (
                sum(isinstance(one, Token) for one in self.of(request_id)) >= num_tokens
                or any(isinstance(one, Finished | Failed) for one in self.of(request_id))
            )
        )

    def _wait_for(self, happened: Any) -> None:
        with self._condition:
            assert self._condition.wait_for(happened, PATIENCE_SECONDS), "it never happened"
