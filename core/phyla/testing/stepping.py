"""Running a binding step by step in a test, without an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

from phyla.backend.device import BackendFacts
from phyla.kv.group import LoopGroup
from phyla.kv.plain import create_plain
from phyla.kv.row_state import RowState
from phyla.model.load_options import LoadOptions
from phyla.model.step import Route, StepInput

if TYPE_CHECKING:
    from phyla.kv.layer_spec import LayerSpec
    from phyla.kv.state import LayerState
    from phyla.model.binding import ModelBinding

ORACLE_CHUNK = 2048

TEST_BACKEND = BackendFacts("cpu", "test", "test", memory_bytes=2**33, working_set_bytes=2**33)
"""Backend facts for states and loading in tests that don't depend on the device."""


def load_options(dtype: str = "float32", *, dense: bool = False, compiled_activations: bool = True) -> LoadOptions:
    """Options as selection would make them."""
    return LoadOptions(TEST_BACKEND, dtype, "dense" if dense else "stored", compiled_activations)


def chunk_list(num_tokens: int, chunk: int = ORACLE_CHUNK) -> list[int]:
    """How mlx-lm's `generate_step` cuts a prompt: chunks that sum to all but the last token, then that one alone."""
    full, rest = divmod(num_tokens - 1, chunk)
    return [*[chunk] * full, *([rest] if rest else []), 1]


@dataclass
class GreedyRun:
    """Greedy tokens and, before each, the logits they were chosen from: each (V,)."""

    tokens: list[int] = field(default_factory=list)
    logits: list[mx.array] = field(default_factory=list)

    def record(self, logits: mx.array) -> int:
        """Choose from one position's logits, as mlx-lm does: the normalised scores' largest, ties to the lowest id."""
        token = int(np.array(mx.argmax(logits - mx.logsumexp(logits, keepdims=True))))
        self.tokens.append(token)
        self.logits.append(logits)
        return token


def plain_state(layer: LayerSpec) -> LayerState:
    """An empty plain state, whatever the device."""
    return create_plain(layer, TEST_BACKEND, "float32")


class Stepper:
    """Rows in the always-right group.

    Args:
        binding: the model.
        num_rows: rows that step together.
        new_state: makes an empty state of a layer.
    """

    def __init__(
        self, binding: ModelBinding, num_rows: int = 1, new_state: Callable[[LayerSpec], LayerState] = plain_state
    ) -> None:
        self.binding = binding
        self.group = LoopGroup(binding.facts.layout)
        for _ in range(num_rows):
            self.group.seat(RowState.fresh(binding.facts.layout, new_state))

    def step(
        self,
        tokens: Sequence[Sequence[int]],
        route: Route = "exact",
        *,
        width: int | None = None,
        span: int | None = None,
        resumes: bool = False,
    ) -> mx.array:
        """Run one step, evaluated.

        Args:
            tokens: what each row gets; rows may differ in number, the shorter ones are padded.
            route: of the step.
            width: pad to this many positions instead of the longest row's.
            span: evaluate after every so many layers; None only at the end.
            resumes: each span in a forward of its own, which goes on with what the one before carried.

        Returns:
            (B, V): logits at each row's last token.
        """
        step = self._input(tokens, route, max(map(len, tokens)) if width is None else width)
        forward = self.binding.start(step, self.group.states())
        num_layers = len(self.binding.facts.layout)
        num_done = 0
        while not forward.done:
            mx.eval(forward.advance(num_layers if span is None else span))
            num_done += num_layers if span is None else span
            if resumes and not forward.done:
                carried = forward.carried
                forward = self.binding.start(step, self.group.states())
                forward.resume(num_done, carried)
        for row, own in zip(self.group.rows, tokens, strict=True):
            row.record(own)
        logits = self.binding.head(forward.output.hidden)[0]
        mx.eval(logits)
        return logits

    def prefill(self, prompt: Sequence[int], route: Route = "exact", *, chunk: int = ORACLE_CHUNK) -> mx.array:
        """Give a lone row a prompt by mlx-lm's chunk list and return (V,): the logits after it."""
        start, logits = 0, mx.zeros(())
        for size in chunk_list(len(prompt), chunk):
            logits = self.step([prompt[start : start + size]], route)[0]
            start += size
        return logits

    def built(self, prompt: Sequence[int]) -> mx.array:
        """(1, 1, V): logits of one step behind a lone row's prompt, unevaluated: the graph the host builds for it."""
        self.step([prompt])
        output = self.binding.forward(self._input([prompt[-1:]], "exact", 1), self.group.states())
        return self.binding.head(output.hidden)

    def _input(self, tokens: Sequence[Sequence[int]], route: Route, width: int) -> StepInput:
        return StepInput(
            ids=mx.array([[*own, *[0] * (width - len(own))] for own in tokens], dtype=mx.int32),
            num_real=tuple(map(len, tokens)),
            offsets=tuple(row.num_tokens for row in self.group.rows),
            route=route,
        )


def greedy(
    binding: ModelBinding,
    prompt: Sequence[int],
    num_tokens: int,
    route: Route = "exact",
    *,
    chunk: int = ORACLE_CHUNK,
    new_state: Callable[[LayerSpec], LayerState] = plain_state,
) -> GreedyRun:
    """A lone row's greedy continuation by mlx-lm's chunk list."""
    stepper, run = Stepper(binding, new_state=new_state), GreedyRun()
    token = run.record(stepper.prefill(prompt, route, chunk=chunk))
    for _ in range(num_tokens - 1):
        token = run.record(stepper.step([[token]], route)[0])
    return run
