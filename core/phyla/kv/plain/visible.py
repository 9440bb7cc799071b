"""From mask values to what the attention kernel takes: nothing, the word "causal", or a boolean array."""

from __future__ import annotations

from typing import Literal, NamedTuple

import mlx.core as mx

from phyla.kv.mask import Bidirectional, BidirectionalSpans, Causal, Explicit, Mask, RowLengths, Windowed

KernelMask = mx.array | Literal["causal"] | None


class StepColumns(NamedTuple):
    """Which tokens the stored columns of one row stand for, as seen by one step's queries.

    A tuple, because each layer of each step makes one: a frozen dataclass takes three times as long.
    """

    num_columns: int
    """Columns the kernel sees: those stored before the step, then the step's own, padded ones included."""

    num_before: int
    """Columns stored before the step; all of them for a reader that comes after or before the donor's step."""

    width: int
    """Queries: L positions, padded ones included."""

    num_real: int
    end: int
    """Position of the token after the last of the columns stored before the step."""

    ring: int | None = None
    """Columns of a ring that already forgets what is further back, or None if nothing is ever forgotten."""

    cursor: int | None = None
    """Where a wrapped ring's oldest column is; None if the columns are in temporal order."""

    @property
    def includes_step(self) -> bool:
        return self.num_columns > self.num_before

    def key_positions(self) -> mx.array:
        """(S,) int32: the position of each column's token."""
        if self.cursor is None:
            first = self.end - self.num_before
            return mx.arange(first, first + self.num_columns, dtype=mx.int32)
        # A wrapped ring holds exactly the last S tokens, this step's one included.
        newest = self.end + 1
        young = mx.arange(newest - self.cursor, newest, dtype=mx.int32)
        old = mx.arange(newest - self.num_columns, newest - self.cursor, dtype=mx.int32)
        return mx.concatenate([young, old])

    def query_positions(self) -> mx.array:
        """(L, 1) int32."""
        return mx.arange(self.end, self.end + self.width, dtype=mx.int32)[:, None]


def kernel_mask(mask: Mask, columns: StepColumns) -> KernelMask:
    """What the kernel needs for the real queries to see what `mask` says; padded queries may see anything."""
    if isinstance(mask, Causal):
        return _causal(columns)
    if isinstance(mask, Explicit):
        return mask.allowed
    if isinstance(mask, Windowed):
        return _windowed(mask.window, columns)
    if isinstance(mask, Bidirectional):
        return _bidirectional(columns)
    if isinstance(mask, RowLengths) and mask.lengths[0] >= columns.end + columns.num_real:
        return kernel_mask(mask.within, columns)
    return boolean_mask(mask, columns)


def boolean_mask(mask: Mask, columns: StepColumns) -> mx.array:
    """The mask as a boolean array, broadcastable to (1, H, L, S)."""
    if isinstance(mask, Explicit):
        return mask.allowed
    keys, queries = columns.key_positions()[None], columns.query_positions()
    if isinstance(mask, BidirectionalSpans):
        allowed = boolean_mask(mask.within, columns)
        for start, end in mask.spans:
            allowed = allowed | ((queries >= start) & (queries < end) & (keys >= start) & (keys < end))
        return allowed & (keys < columns.end + columns.num_real)
    if isinstance(mask, RowLengths):
        return boolean_mask(mask.within, columns) & (keys < mask.lengths[0])
    if isinstance(mask, Bidirectional):
        return mx.broadcast_to(keys < columns.end + columns.num_real, (columns.width, columns.num_columns))
    window = mask.window if isinstance(mask, Windowed) else columns.ring
    allowed = queries >= keys
    return allowed if window is None else allowed & (queries < keys + window)


def _causal(columns: StepColumns) -> KernelMask:
    if columns.ring is not None:
        return _windowed(columns.ring, columns)
    return None if columns.width == 1 or not columns.includes_step else "causal"


def _windowed(window: int, columns: StepColumns) -> KernelMask:
    # The fused kernel's low bits depend on the form of its mask, so the form follows mlx-lm's caches: an array from
    # plain storage, and from a ring only when the ring holds more than the window.
    if columns.ring is None:
        return boolean_mask(Windowed(window), columns)
    if not columns.includes_step:
        hidden = columns.num_before + columns.width - 1 >= window
        return boolean_mask(Windowed(window), columns) if hidden else None
    if columns.width == 1:
        return boolean_mask(Windowed(window), columns) if columns.num_columns > window else None
    return boolean_mask(Windowed(window), columns) if columns.num_columns > window else "causal"


def _bidirectional(columns: StepColumns) -> KernelMask:
    is_padded = columns.includes_step and columns.num_real < columns.width
    return boolean_mask(Bidirectional(), columns) if is_padded else None
