"""The fast route's decode steps and verify windows, traced once per shape and replayed: building the graph is then no
work of the host's.

What a step reads and writes goes in and comes out as arrays: ids, positions, where each row's next token goes, and the
buffers of every layer. Nothing else is captured but the weights, so that a join, a leave or a longer row meets a trace
that was made before. The step ends at logits; sampling is a dispatch of its own.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import mlx.core as mx

from phyla.model.step import StepInput

if TYPE_CHECKING:
    from phyla.kv.stacked.bay import Bay
    from phyla.model.binding import LayerStates, ModelBinding

MOST_SHAPES = 64
"""Traces that are kept; the one that wasn't used for longest makes room."""

Buffers: TypeAlias = "list[list[mx.array]]"
"""Of each layer of each bay, in their order."""

Traced: TypeAlias = "Callable[[mx.array, mx.array, list[mx.array], Buffers], tuple[mx.array, Buffers]]"
"""`(ids, offsets, starts of each bay, buffers) -> (logits, buffers)`."""

Compile: TypeAlias = "Callable[[Traced], Traced]"

Key: TypeAlias = "tuple[Any, ...]"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CompiledCounts:
    """Since the start; an immutable value, replaced whole, so that any thread reads a consistent one."""

    shapes: int = 0
    """Different shapes that were traced."""

    traces: int = 0
    """More than `shapes` is a fault: something that changes from step to step was baked in."""

    steps: int = 0
    """Replayed, those that traced included."""

    failures: int = 0
    """After the first, every step is built anew."""

    failure: str | None = None
    too_large: int = 0
    """Steps that weren't traced since memory for a second copy of their buffers was missing."""

    @property
    def retraces(self) -> int:
        return max(0, self.traces - self.shapes)


def compiled_whole(step: Traced) -> Traced:
    """MLX's own compiling, for exactly the shapes of the first call."""
    return mx.compile(step)


class CompiledSteps:
    """Belongs to the engine thread.

    Args:
        binding: whose step it is.
        is_wanted: whether a step of so many seats is to be compiled.
        room_bytes: of memory, for the first step of a shape, which keeps what it replaces until it has worked.
        compile: makes a traced function of one.
    """

    def __init__(
        self,
        binding: ModelBinding,
        is_wanted: Callable[[int], bool],
        room_bytes: int,
        compile: Compile = compiled_whole,
    ) -> None:
        self._binding = binding
        self._is_wanted = is_wanted
        self._room_bytes = room_bytes
        self._compile = compile
        self._traced: OrderedDict[Key, Traced] = OrderedDict()
        self._under_way: tuple[Sequence[Bay], LayerStates] | None = None
        self.counts = CompiledCounts()

    def takes(self, num_seats: int) -> bool:
        """Whether a step of so many seats is traced, if nothing about it is in the way."""
        return not self.counts.failures and self._is_wanted(num_seats)

    def run(self, step: StepInput, bays: Sequence[Bay], states: LayerStates) -> mx.array | None:
        """Build a step or a window; nothing has changed if it isn't done here.

        Args:
            step: as the eager step would take it.
            bays: where the rows sit; none: nothing to trace over.
            states: of the layers, over those bays.

        Returns:
            (B * L, V) logits of all positions, whatever the step wants, or None: compute it eagerly. A shape's first
            step is evaluated, later ones aren't.
        """
        if not bays or not self.takes(step.num_rows):
            return None
        if step.taps or step.overlay is not None or step.positions is not None:
            return None
        if step.width > 1 and not all(layer.traces_windows for bay in bays for layer in bay.layers):
            return None
        buffers = [layer.evaluate() for bay in bays for layer in bay.layers]
        if not all(buffers):
            return None  # a row's very first token: there is no buffer yet
        # Only what decides shapes: who sits where doesn't.
        key = (step.width, *((bay.seating.num_seats, bay.seating.capacity, bay.seating.room) for bay in bays))
        is_new = key not in self._traced
        if is_new and not self._has_room(bays):
            self.counts = replace(self.counts, too_large=self.counts.too_large + 1)
            return None
        try:
            return self._replayed(key, step, bays, states, buffers, is_new=is_new)
        except Exception as error:
            self._give_up(bays, buffers, error)
            return None

    def _replayed(
        self,
        key: Key,
        step: StepInput,
        bays: Sequence[Bay],
        states: LayerStates,
        buffers: Buffers,
        *,
        is_new: bool,
    ) -> mx.array:
        traced = self._function(key)
        offsets = mx.array(step.offsets, dtype=mx.int32) if isinstance(step.offsets, tuple) else step.offsets
        starts = [bay.seating.starts for bay in bays]
        self._under_way = (bays, states)
        try:
            # One dtype: another would be another trace.
            logits, stored = traced(step.ids.astype(mx.int32), offsets, starts, buffers)
        finally:
            self._under_way = None
            for bay in bays:
                bay.seating.unfollow()
        if is_new:
            # Before anything is given up: what doesn't compile or run shows now, while the old buffers are there.
            mx.eval(logits, stored)
        # From here on the old buffers have no owner but the step, which writes into them.
        _put_back(bays, stored)
        buffers.clear()
        self.counts = replace(self.counts, steps=self.counts.steps + 1)
        if is_new and self.counts.retraces:
            _log.warning("A decode step of one shape was traced %d times too often.", self.counts.retraces)
        return logits

    def _function(self, key: Key) -> Traced:
        if key in self._traced:
            self._traced.move_to_end(key)
            return self._traced[key]
        if len(self._traced) == MOST_SHAPES:
            self._traced.popitem(last=False)
        self._traced[key] = self._compile(self._step)
        self.counts = replace(self.counts, shapes=self.counts.shapes + 1)
        return self._traced[key]

    def _step(
        self, ids: mx.array, offsets: mx.array, starts: list[mx.array], buffers: Buffers
    ) -> tuple[mx.array, Buffers]:
        """What is traced. Runs only then; afterwards the bays are as they were, but for what `_replayed` puts back."""
        assert self._under_way is not None, "a step is traced when it is first run"
        bays, states = self._under_way
        self.counts = replace(self.counts, traces=self.counts.traces + 1)
        for bay, start in zip(bays, starts, strict=True):
            bay.seating.follow(start)
        _put_back(bays, buffers)
        # Every seat steps with all its positions: which are dead or padding changes from step to step and mustn't be
        # baked in. What they store lies behind their row's end.
        num_rows, width = ids.shape
        step = StepInput(
            ids=ids,
            num_real=(width,) * num_rows,
            offsets=offsets,
            route="fast",
            wanted=None if width == 1 else mx.arange(num_rows * width, dtype=mx.int32),
        )
        hidden = self._binding.forward(step, states).hidden
        logits = self._binding.logits_of(hidden, "fast")[0]
        return logits, [layer.evaluate() for bay in bays for layer in bay.layers]

    def _has_room(self, bays: Sequence[Bay]) -> bool:
        return mx.get_active_memory() + sum(bay.owned_bytes for bay in bays) <= self._room_bytes

    def _give_up(self, bays: Sequence[Bay], buffers: Buffers, error: Exception) -> None:
        if not buffers:
            # The step was under way with buffers that it owned: there is nothing to go back to.
            raise error
        _put_back(bays, buffers)
        self._traced.clear()
        reason = f"{type(error).__name__}: {error}"
        self.counts = replace(self.counts, failures=self.counts.failures + 1, failure=reason[:500])
        _log.warning("A decode step couldn't be compiled and is built anew from now on: %s", reason)


def _put_back(bays: Sequence[Bay], buffers: Buffers) -> None:
    layers = [layer for bay in bays for layer in bay.layers]
    for layer, held in zip(layers, buffers, strict=True):
        layer.replace(held)
