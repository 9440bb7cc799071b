"""A traced step that is being replayed, piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import mlx.core as mx

from phyla.engine.traced_span import Buffers, LayerSpan, Traced, UnderWay, put_in

if TYPE_CHECKING:
    from phyla.kv.stacked.bay import Bay
    from phyla.model.step import StepInput


@dataclass(frozen=True)
class Piece:
    """Layers that are traced together."""

    span: LayerSpan
    traced: Traced


@dataclass(frozen=True)
class StepArrays:
    """All that changes from step to step beside the buffers."""

    ids: mx.array
    """(B, L) int32"""

    offsets: mx.array
    """(B,) int32, the position of each row's first token."""

    starts: Sequence[mx.array]
    """Per bay, (seats,) int32: where that token goes."""

    @classmethod
    def of(cls, step: StepInput, bays: Sequence[Bay]) -> StepArrays:
        """Those of a step that is known."""
        offsets = mx.array(step.offsets, dtype=mx.int32) if isinstance(step.offsets, tuple) else step.offsets
        # One dtype: another would be another trace.
        return cls(step.ids.astype(mx.int32), offsets, [bay.seating.starts for bay in bays])


@dataclass
class Replay:
    """Runs the pieces of a step in order; its layers go on with what each piece stores.

    Args:
        pieces: of the step.
        under_way: where its rows sit.
        buffers: of all its layers; emptied once the first piece has run, which writes into them if nobody else owns
            them.
        inputs: of the step.
    """

    pieces: Sequence[Piece]
    under_way: UnderWay
    buffers: Buffers
    inputs: StepArrays
    _held: Buffers = field(init=False)
    _carried: list[mx.array] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._held = list(self.buffers)

    def tried(self) -> mx.array:
        """A shape's first step: (B * L, V) logits. Nothing is given up before it has worked."""
        for piece in self.pieces:
            self._run(piece)
        mx.eval(self._carried, self._held)
        put_in(self.under_way.layers, self._held)
        self.buffers.clear()
        [logits] = self._carried
        return logits

    def front(self, *, dispatches: bool = True) -> None:
        """All pieces but the last."""
        for piece in self.pieces[:-1]:
            stored = self._put(piece)
            if dispatches:
                mx.async_eval(self._carried, stored)  # type: ignore[no-untyped-call]

    def rest(self) -> mx.array:
        """(B * L, V) logits, undispatched."""
        self._put(self.pieces[-1])
        [logits] = self._carried
        return logits

    def _put(self, piece: Piece) -> Buffers:
        owned = self._run(piece)
        # From here on the old buffers have no owner but the step, which writes into them.
        put_in(self.under_way.layers[owned], self._held[owned])
        self.buffers.clear()
        return self._held[owned]

    def _run(self, piece: Piece) -> slice:
        inputs = self.inputs
        owned = piece.span.owned(len(self.under_way.bays))
        self._carried, self._held[owned] = piece.traced(
            inputs.ids, inputs.offsets, list(inputs.starts), self._carried, self._held
        )
        return owned
