"""Whole decode steps of several rows in common buffers, without scheduler, sampling and requests. Imports mlx."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import mlx.core as mx

from phyla.backend.strategy import Point, Strategies
from phyla.engine.compiled_step import CompiledSteps
from phyla.engine.geometry import decode_geometry
from phyla.kv.group import Group, LoopGroup
from phyla.kv.row_state import TARGET, RowState, StateFactory
from phyla.kv.stacked.group import StackedGroup
from phyla.model.step import StepInput

if TYPE_CHECKING:
    from phyla.model.binding import ModelBinding

CHUNK_TOKENS = 512
WARM_STEPS = 3
VOCABULARY = 500
"""Prompts use so many ids."""


class StepBench:
    """Belongs to the thread that loaded the model.

    Args:
        binding: the model.
        new_state: makes an empty state of a layer.
        strategies: how stacked groups compute.
        room_bytes: of memory.
    """

    def __init__(self, binding: ModelBinding, new_state: StateFactory, strategies: Strategies, room_bytes: int) -> None:
        self._binding = binding
        self._new_state = new_state
        self._strategies = strategies
        self._room_bytes = room_bytes
        self._read: dict[int, RowState] = {}

    def point(self, rows: int, stored: int, num_steps: int, num_runs: int) -> Point:
        """What a traced step and one that is built anew take, as a point of a table."""
        sizes = decode_geometry(self._binding.facts, rows).sizes()
        return Point("decode", dict(sizes), self.timings([stored] * rows, num_steps, num_runs), f"{stored} stored")

    def timings(self, lengths: Sequence[int], num_steps: int, num_runs: int) -> dict[str, float]:
        """Microseconds of a step of rows of these lengths, built anew and traced: the median of runs in turns."""
        groups = {"eager": self.stacked(lengths), "compiled": self.stacked(lengths)}
        steps = {"eager": None, "compiled": self.compiled()}
        seconds: dict[str, list[float]] = {name: [] for name in groups}
        for group in groups.values():
            group.prepare(1)
        ids = {name: mx.full((len(group.seats), 1), 7, dtype=mx.int32) for name, group in groups.items()}
        for number in range(num_runs + 1):
            for name, group in groups.items():
                began = time.perf_counter()
                ids[name] = self.decode(group, ids[name], num_steps if number else WARM_STEPS, steps[name])
                if number:
                    seconds[name].append((time.perf_counter() - began) / num_steps)
        return {name: round(statistics.median(taken) * 1e6, 1) for name, taken in seconds.items()}

    def compiled(self) -> CompiledSteps:
        """Traces of its own."""
        return CompiledSteps(self._binding, lambda rows: True, self._room_bytes)

    def stacked(self, lengths: Sequence[int]) -> StackedGroup:
        """Rows of so many tokens in common buffers."""
        group = StackedGroup(self._binding.facts.layout, strategies=self._strategies)
        self.fill(group, lengths)
        return group

    def looped(self, lengths: Sequence[int]) -> LoopGroup:
        """The same rows, each with storage of its own."""
        group = LoopGroup(self._binding.facts.layout)
        self.fill(group, lengths)
        return group

    def fill(self, group: Group, lengths: Sequence[int]) -> list[RowState]:
        """Let rows of so many tokens join."""
        rows = [self._row(length).clone() for length in lengths]
        for row in rows:
            group.seat(row)
        return rows

    def decode(self, group: Group, ids: mx.array, num_steps: int, steps: CompiledSteps | None = None) -> mx.array:
        """Greedy steps, each dispatched before the host reads the one before; returns the last ids, read."""
        before: mx.array | None = None
        for _ in range(num_steps):
            logits = self.logits(group, ids, steps)
            ids = mx.argmax(logits, axis=-1, keepdims=True).astype(mx.int32)
            mx.async_eval(ids)  # type: ignore[no-untyped-call]
            if before is not None:
                before.tolist()
            before = ids
        mx.eval(ids, self._stored(group))
        return ids

    def logits(self, group: Group, ids: mx.array, steps: CompiledSteps | None = None) -> mx.array:
        """(B, V) logits of one step, unevaluated; every seat steps, dead ones too."""
        group.prepare(1)
        counts = tuple(int(row is not None) for row in group.seats)
        offsets = tuple(_num_tokens(group))
        step = StepInput(ids, counts, offsets, route="fast")
        states = group.states()
        logits = None if steps is None else steps.run(step, group.bays, states)
        if logits is None:
            logits = self._binding.logits_of(self._binding.forward(step, states).hidden, "fast").squeeze(0)
        group.advance(counts)
        return logits

    def _stored(self, group: Group) -> list[mx.array]:
        layers = zip(self._binding.facts.layout, group.states(), strict=True)
        return [array for layer, state in layers if layer.owns_state for array in state.evaluate()]

    def _row(self, num_tokens: int) -> RowState:
        """A row that has read so many tokens."""
        if num_tokens not in self._read:
            layout = self._binding.facts.layout
            row, alone = RowState.fresh(layout, self._new_state), LoopGroup(layout)
            alone.seat(row)
            for start in range(0, num_tokens, CHUNK_TOKENS):
                chunk = [3 + (7 * place) % VOCABULARY for place in range(start, min(start + CHUNK_TOKENS, num_tokens))]
                step = StepInput(mx.array([chunk], dtype=mx.int32), (len(chunk),), (start,), route="fast")
                hidden = self._binding.forward(step, alone.states()).hidden
                mx.eval(hidden, self._stored(alone))
                row.record(chunk)
            alone.stand(row)
            self._read[num_tokens] = row
        return self._read[num_tokens]


def _num_tokens(group: Group) -> Iterator[int]:
    if group.bays:
        for bay in group.bays:
            yield from bay.num_tokens
        return
    for row in group.seats:
        yield 0 if row is None else row.sets[TARGET][0].num_tokens
