"""What is traced of a step or a window: the layers of a span, run over arrays that have no numbers yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import mlx.core as mx

from phyla.model.step import StepInput

if TYPE_CHECKING:
    from phyla.kv.layer_spec import Layout
    from phyla.kv.stacked.bay import Bay
    from phyla.kv.state import StackedState
    from phyla.model.binding import LayerStates, ModelBinding

FRONT_PART = 4
"""One layer in so many is in the first of two pieces. The device must be busy with them until the host has
replayed the others, for which a quarter does while replaying takes up to a third of what the device takes; the fewer
there are, the sooner it begins."""

Buffers: TypeAlias = "list[list[mx.array]]"
"""Layer by layer, of each bay in their order."""

Traced: TypeAlias = (
    "Callable[[mx.array, mx.array, list[mx.array], list[mx.array], Buffers], tuple[list[mx.array], Buffers]]"
)
"""A piece: `(ids, offsets, starts of each bay, what the layers before carried, all buffers) -> (what its layers carry,
or the logits behind the last; its own layers' buffers)`."""


@dataclass(frozen=True)
class LayerSpan:
    """Layers that are traced together; behind the last of all comes the head."""

    start: int
    stop: int
    first_owned: int
    """Of the layers that own buffers, how many come before."""

    num_owned: int

    def owned(self, num_bays: int) -> slice:
        """Where the buffers of its layers lie among all."""
        start = self.first_owned * num_bays
        return slice(start, start + self.num_owned * num_bays)


def spans_of(layout: Layout, *, is_awaited: bool) -> list[LayerSpan]:
    """The pieces of a step: two where the device waits for it.

    Others stay whole: the device is busy with the step before while the host replays them, and a second dispatch costs
    2 to 3% of a lone row's step (toys of 16 and 32 layers on a CPU).
    """
    owns = [layer.owns_state for layer in layout]
    front = max(1, len(owns) // FRONT_PART) if is_awaited and len(owns) > 1 else 0
    cuts = [0, front, len(owns)] if front else [0, len(owns)]
    return [LayerSpan(start, stop, sum(owns[:start]), sum(owns[start:stop])) for start, stop in pairwise(cuts)]


@dataclass
class UnderWay:
    """A step that is being replayed, and traced if it hasn't been before."""

    binding: ModelBinding
    bays: Sequence[Bay]
    layers: Sequence[StackedState]
    """Those of the bays that own buffers, as `layers_of` gives them."""

    states: LayerStates
    is_traced: bool = False

    def trace(
        self,
        span: LayerSpan,
        ids: mx.array,
        offsets: mx.array,
        starts: Sequence[mx.array],
        carried: Sequence[mx.array],
        buffers: Buffers,
    ) -> tuple[list[mx.array], Buffers]:
        """See `Traced`. Runs only when a piece is traced, and leaves the bays as they were."""
        self.is_traced = True
        before = [layer.evaluate() for layer in self.layers]
        for bay, start in zip(self.bays, starts, strict=True):
            bay.seating.follow(start)
        # All of them: a layer may read what one of another piece stores.
        put_in(self.layers, buffers)
        try:
            return self._run(span, ids, offsets, carried)
        finally:
            put_in(self.layers, before)
            for bay in self.bays:
                bay.seating.unfollow()

    def _run(
        self, span: LayerSpan, ids: mx.array, offsets: mx.array, carried: Sequence[mx.array]
    ) -> tuple[list[mx.array], Buffers]:
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
        forward = self.binding.start(step, self.states)
        if span.start:
            forward.resume(span.start, carried)
        forward.advance(span.stop - span.start)
        stored = [layer.evaluate() for layer in self.layers[span.owned(len(self.bays))]]
        if not forward.done:
            return forward.carried, stored
        return [self.binding.logits_of(forward.output.hidden, "fast")[0]], stored


def layers_of(bays: Sequence[Bay]) -> list[StackedState]:
    """Those that own buffers, layer by layer."""
    return [layer for together in zip(*(bay.layers for bay in bays), strict=True) for layer in together]


def put_in(layers: Sequence[StackedState], buffers: Buffers) -> None:
    """Let layers go on with these."""
    for layer, held in zip(layers, buffers, strict=True):
        layer.replace(held)
