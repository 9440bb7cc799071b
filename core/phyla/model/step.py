"""One step of a group: a rectangle of B rows by L positions, and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import mlx.core as mx

Route = Literal["exact", "fast"]


@dataclass(frozen=True)
class Tap:
    """A hidden row that a drafter wants to see."""

    layer: int
    """Index of the decoder layer whose output is meant."""

    norm: Literal["pre", "post"] = "pre"
    """Before or after the model's final norm; `post` only makes sense for the last layer."""


@dataclass(frozen=True)
class Overlay:
    """Embeddings that replace those of placeholder tokens (media)."""

    token_indices: mx.array
    """(M,) int32, flat positions in the B*L rectangle."""

    embeddings: mx.array
    """(M, E), already scaled as the family's own embeddings are."""

    ids: mx.array
    """(M,) int32: what a family that looks at ids again should see there."""


@dataclass(frozen=True)
class StepInput:
    """What one step computes. Rows are padded on the right to the width of the widest.

    Axes: B rows (dead seats included), L positions.
    """

    ids: mx.array
    """(B, L) int32; arbitrary in padded places."""

    num_real: tuple[int, ...]
    """Real positions per row; 0 for a dead seat."""

    offsets: tuple[int, ...] | mx.array
    """Position of each row's first token: host ints on the exact route, a (B,) int32 array in a compiled step."""

    positions: mx.array | None = None
    """(axes, B*L) int32 where positions aren't `offset + 0..L-1` on every axis (mRoPE); None otherwise."""

    route: Route = "exact"
    overlay: Overlay | None = None
    taps: tuple[Tap, ...] = ()
    wanted: mx.array | None = None
    """(M,) int32 flat positions whose hidden rows come out; None: the last real position of each row."""

    atomic_spans: tuple[tuple[int, int], ...] = ()
    """[start, end) token spans that chunking must not cut; the families that need them read them for masks."""

    @cached_property
    def num_rows(self) -> int:
        return self.ids.shape[0]

    @cached_property
    def width(self) -> int:
        return self.ids.shape[1]

    @cached_property
    def rope_offset(self) -> int | mx.array:
        """What `mx.fast.rope` takes, made once: given an int it would make an array in each call.

        On a CPU a lone row's stays an int: its rotations come from tables, which go by the number.
        """
        import mlx.core as mx

        if not isinstance(self.offsets, tuple):
            return self.offsets
        if len(self.offsets) > 1:
            return mx.array(self.offsets, dtype=mx.int32)
        on_cpu = mx.default_device().type == mx.DeviceType.cpu
        return self.offsets[0] if on_cpu else mx.array(self.offsets[0], dtype=mx.int32)


@dataclass(frozen=True)
class StepOutput:
    """Hidden rows at the wanted positions, before the final norm and head (`binding.head` applies both)."""

    hidden: mx.array
    """(1, M, E)."""

    taps: Mapping[Tap, mx.array] = field(default_factory=dict)
    """Each (1, B*L, E)."""


WIDTH_CLASSES: Sequence[int] = (1, 4, 8, 16, 32)
"""Steps pad to the next of these, so that few shapes are ever traced; longer ones (prefill) aren't padded."""


def width_class(num_positions: int) -> int:
    """The padded width of a step whose widest row has `num_positions`."""
    for width in WIDTH_CLASSES:
        if num_positions <= width:
            return width
    return num_positions
