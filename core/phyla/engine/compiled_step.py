"""The fast route's decode steps and verify windows, traced once per shape and replayed: building the graph is then no
work of the host's.

What a step reads and writes goes in and comes out as arrays: ids, positions, where each row's next token goes, and the
buffers of every layer. Nothing else is captured but the weights, so that a join, a leave or a longer row meets a trace
that was made before. The step ends at logits; sampling is a dispatch of its own.

A step that the device waits for, with none before it to hide the host's work, is traced in two pieces: the device
begins with the first layers while the host replays the others.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import mlx.core as mx

from phyla.engine.ahead import StepAhead
from phyla.engine.replay import Piece, Replay, StepArrays
from phyla.engine.traced_span import Buffers, LayerSpan, Traced, UnderWay, layers_of, spans_of

if TYPE_CHECKING:
    from phyla.engine.late_input import LateInputs
    from phyla.kv.stacked.bay import Bay
    from phyla.model.binding import LayerStates, ModelBinding
    from phyla.model.step import StepInput

MOST_SHAPES = 64
"""Traces that are kept; the one that wasn't used for longest makes room."""

Compile: TypeAlias = "Callable[[Traced], Traced]"

Key: TypeAlias = "tuple[Any, ...]"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CompiledCounts:
    """Since the start; an immutable value, replaced whole, so that any thread reads a consistent one."""

    shapes: int = 0
    """Different shapes that were traced."""

    traces: int = 0
    """Steps that were traced, in one piece or two. More than `shapes` is a fault: something that changes from step to
    step was baked in."""

    steps: int = 0
    """Replayed, those that traced included."""

    failures: int = 0
    """After the first, every step is built anew."""

    failure: str | None = None
    too_large: int = 0
    """Steps that weren't traced since memory for a second copy of their buffers, and for their logits, was missing."""

    @property
    def retraces(self) -> int:
        return max(0, self.traces - self.shapes)


def compiled_whole(piece: Traced) -> Traced:
    """MLX's own compiling, for exactly the shapes of the first call."""
    return mx.compile(piece)


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
        self._traced: OrderedDict[Key, list[Piece]] = OrderedDict()
        self._under_way: UnderWay | None = None
        self.counts = CompiledCounts()

    def takes(self, num_seats: int) -> bool:
        """Whether a step of so many seats is traced, if nothing about it is in the way."""
        return not self.counts.failures and self._is_wanted(num_seats)

    def run(
        self, step: StepInput, bays: Sequence[Bay], states: LayerStates, *, is_awaited: bool = False
    ) -> mx.array | None:
        """Build a step or a window; nothing has changed if it isn't done here.

        Args:
            step: as the eager step would take it.
            bays: where the rows sit; none: nothing to trace over.
            states: of the layers, over those bays.
            is_awaited: the device has nothing else to do meanwhile: it should begin before all is built.

        Returns:
            (B * L, V) logits of all positions, whatever the step wants, or None: compute it eagerly. A shape's first
            step is evaluated; of later ones that are awaited the first layers are under way.
        """
        if not bays or not self.takes(step.num_rows):
            return None
        if step.taps or step.overlay is not None or step.positions is not None:
            return None
        layers = layers_of(bays)
        buffers = [layer.evaluate() for layer in layers]
        if not all(buffers):
            return None  # a row's very first token: there is no buffer yet
        key = _key(bays, step.width, is_awaited=is_awaited)
        is_new = key not in self._traced
        if is_new and step.width > 1 and not all(layer.traces_windows for layer in layers):
            return None
        if is_new and not self._has_room(step, bays):
            self.counts = replace(self.counts, too_large=self.counts.too_large + 1)
            return None
        under_way = self._under_way = UnderWay(self._binding, bays, layers, states)
        replay = Replay(self._pieces(key, is_awaited=is_awaited), under_way, buffers, StepArrays.of(step, bays))
        try:
            if is_new:
                logits = replay.tried()
            else:
                replay.front()
                logits = replay.rest()
        except Exception as error:
            self._give_up(buffers, error)
            return None
        finally:
            self._under_way = None
            if under_way.is_traced:
                # Once, in however many pieces.
                self.counts = replace(self.counts, traces=self.counts.traces + 1)
        self.counts = replace(self.counts, steps=self.counts.steps + 1)
        if is_new and self.counts.retraces:
            _log.warning("A decode step of one shape was traced %d times too often.", self.counts.retraces)
        return logits

    def begun(self, width: int, bays: Sequence[Bay], states: LayerStates, late: LateInputs) -> StepAhead | None:
        """A window of rows that sit like this, whose tokens follow; None where none like it has been traced yet."""
        key = _key(bays, width, is_awaited=True)
        if self.counts.failures or key not in self._traced:
            return None
        layers = layers_of(bays)
        under_way = UnderWay(self._binding, bays, layers, states)
        self.counts = replace(self.counts, steps=self.counts.steps + 1)
        return StepAhead(self._pieces(key, is_awaited=True), under_way, width, late)

    def _pieces(self, key: Key, *, is_awaited: bool) -> list[Piece]:
        if key in self._traced:
            self._traced.move_to_end(key)
            return self._traced[key]
        if len(self._traced) == MOST_SHAPES:
            self._traced.popitem(last=False)
        spans = spans_of(self._binding.facts.layout, is_awaited=is_awaited)
        self._traced[key] = [Piece(span, self._compile(self._traced_over(span))) for span in spans]
        self.counts = replace(self.counts, shapes=self.counts.shapes + 1)
        return self._traced[key]

    def _traced_over(self, span: LayerSpan) -> Traced:
        def run(
            ids: mx.array, offsets: mx.array, starts: list[mx.array], carried: list[mx.array], buffers: Buffers
        ) -> tuple[list[mx.array], Buffers]:
            assert self._under_way is not None, "a step is traced when it is first run"
            return self._under_way.trace(span, ids, offsets, starts, carried, buffers)

        return run

    def _has_room(self, step: StepInput, bays: Sequence[Bay]) -> bool:
        """For a second copy of the buffers, and logits of every position of every seat."""
        logits = step.ids.size * self._binding.facts.vocab_size * self._binding.embed(step).dtype.size
        return mx.get_active_memory() + sum(bay.owned_bytes for bay in bays) + logits <= self._room_bytes

    def _give_up(self, buffers: Buffers, error: Exception) -> None:
        if not buffers:
            # The step was under way with buffers that it owned: there is nothing to go back to.
            raise error
        self._traced.clear()
        reason = f"{type(error).__name__}: {error}"
        self.counts = replace(self.counts, failures=self.counts.failures + 1, failure=reason[:500])
        _log.warning("A decode step couldn't be compiled and is built anew from now on: %s", reason)


def _key(bays: Sequence[Bay], width: int, *, is_awaited: bool) -> Key:
    """Only what decides shapes: who sits where doesn't."""
    return (is_awaited, width, *((bay.seating.num_seats, bay.seating.capacity, bay.seating.room) for bay in bays))
