"""The columns of a ring: which tokens they stand for, and how a step changes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import mlx.core as mx

from phyla.kv.plain.slab import SLAB_TOKENS
from phyla.kv.plain.visible import StepColumns

Planes = tuple[mx.array, ...]
"""Arrays that are stored side by side, tokens along axis 2: keys and values, or what a scheme encodes them as."""


class RingColumns:
    """The planes of the last tokens of one row.

    A step of several positions puts the columns in temporal order and appends; `window - 1 + L` columns remain, so that
    each query still finds its window. A step of one position overwrites the oldest column of a full ring.

    Invariant: columns [0, num_used) are real. With `cursor == num_used` they are in temporal order; otherwise the ring
    has wrapped and `cursor` is its oldest column.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._planes: Planes | None = None
        self.num_tokens = 0
        self.num_used = 0
        self.cursor = 0
        self._step_start = 0
        self._step_columns = 0

    @property
    def num_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self.buffers())

    def append(self, planes: Sequence[mx.array], num_real: int) -> None:
        """Take one step: (1, heads, L, width) of each plane, of which the first `num_real` positions count."""
        if num_real == 0:
            return
        self._step_start = self.num_tokens
        if planes[0].shape[2] == 1:
            self._write_one(planes)
        else:
            self._concatenate(planes, num_real)
        self.num_tokens += num_real

    def columns(self, width: int, num_real: int, includes_step: bool) -> tuple[Planes, StepColumns]:
        """The planes and what their columns stand for, for queries of the last step or of one after it."""
        assert self._planes is not None
        if not includes_step:
            described = StepColumns(
                self.num_used, self.num_used, width, num_real, end=self.num_tokens, ring=self._window
            )
            return tuple(self._in_order(buffer) for buffer in self._planes), described
        count = self._step_columns
        described = StepColumns(
            count,
            count - width,
            width,
            num_real,
            end=self._step_start,
            ring=self._window,
            cursor=self.cursor if self.cursor < self.num_used else None,
        )
        return tuple(buffer[..., :count, :] for buffer in self._planes), described

    def can_rewind_to(self, num_tokens: int) -> bool:
        """Whether the columns a state of `num_tokens` would attend to are all still here."""
        if num_tokens in (0, self.num_tokens):
            return True
        num_forgotten = self.num_tokens - self.num_used
        return 0 < num_tokens < self.num_tokens and max(0, num_tokens - self._window) >= num_forgotten

    def rewind(self, num_tokens: int) -> None:
        """Go back to `num_tokens`; `can_rewind_to` must have said yes."""
        if num_tokens == 0:
            self._planes = None
            self.num_used = self.cursor = self.num_tokens = 0
        elif num_tokens < self.num_tokens:
            self.num_used -= self.num_tokens - num_tokens
            self.cursor = self.num_used
            self.num_tokens = num_tokens

    def clone(self) -> Self:
        """Fresh handles on the same buffers."""
        return self.converted(lambda planes: tuple(plane[:] for plane in planes))

    def converted(self, convert: Callable[[Planes], Planes]) -> Self:
        """The same tokens in planes that `convert` makes of these: column by column, so that they stay in place."""
        copy = type(self)(self._window)
        copy._planes = None if self._planes is None else convert(self._planes)
        copy.num_tokens, copy.num_used, copy.cursor = self.num_tokens, self.num_used, self.cursor
        return copy

    def copied(self) -> tuple[int, int, Planes]:
        """How many columns matter, the cursor among them, and the columns as they lie, in arrays of that size.

        After a wide step the ring holds more than its window. The next step would drop them, so they stay behind here.
        """
        if self._planes is None or self.num_used == 0:
            return 0, 0, ()
        num_columns = min(self.num_used, self._window)
        surplus = self.num_used - num_columns
        planes = tuple(mx.array(buffer[..., surplus : self.num_used, :]) for buffer in self._planes)
        return num_columns, self.cursor - surplus, planes

    def restore(self, planes: Planes, num_tokens: int, num_used: int, cursor: int) -> None:
        """Take over what `copied` gave."""
        self._planes = planes or None
        self.num_tokens, self.num_used, self.cursor = num_tokens, num_used, cursor

    def buffers(self) -> list[mx.array]:
        return list(self._planes or ())

    def _concatenate(self, planes: Sequence[mx.array], num_real: int) -> None:
        num_before = min(self.num_used, self._window - 1)
        self._planes = self._each(lambda buffer, rows: self._joined(buffer, rows, num_before), planes)
        self._step_columns = num_before + planes[0].shape[2]
        self.num_used = self.cursor = num_before + num_real

    def _joined(self, buffer: mx.array | None, rows: mx.array, num_before: int) -> mx.array:
        # `[:]`: the caller's array object must not be written into by the next step.
        if buffer is None or num_before == 0:
            return rows[:]
        return mx.concatenate([self._in_order(buffer)[..., self.num_used - num_before :, :], rows], axis=2)

    def _write_one(self, planes: Sequence[mx.array]) -> None:
        if self.num_used >= self._window:
            self._planes = self._each(lambda buffer, rows: self._cut(buffer), planes)
            self.num_used = self._window
            column = 0 if self.cursor >= self._window else self.cursor
        else:
            self._planes = self._each(self._with_room, planes)
            column = self.num_used
            self.num_used += 1
        for buffer, rows in zip(self._planes, planes, strict=True):
            buffer[..., column : column + 1, :] = rows
        self.cursor = column + 1
        self._step_columns = self.num_used

    def _each(self, change: Callable[[mx.array | None, mx.array], mx.array], planes: Sequence[mx.array]) -> Planes:
        """What `change` makes of each buffer and the plane of the step that goes with it."""
        buffers: Sequence[mx.array | None] = self._planes or (None,) * len(planes)
        return tuple(change(buffer, rows) for buffer, rows in zip(buffers, planes, strict=True))

    def _cut(self, buffer: mx.array | None) -> mx.array:
        """A buffer of exactly `window` columns. More only ever lie there in temporal order."""
        assert buffer is not None
        if buffer.shape[2] == self._window:
            return buffer
        return mx.contiguous(buffer[..., self.num_used - self._window : self.num_used, :])

    def _with_room(self, buffer: mx.array | None, rows: mx.array) -> mx.array:
        if buffer is not None and buffer.shape[2] > self.num_used:
            return buffer
        batch, num_heads, _, width = rows.shape
        num_new = min(SLAB_TOKENS, self._window - self.num_used)
        room = mx.zeros((batch, num_heads, num_new, width), dtype=rows.dtype)
        return room if buffer is None else mx.concatenate([buffer, room], axis=2)

    def _in_order(self, buffer: mx.array) -> mx.array:
        """The real columns, oldest first."""
        if self.cursor == self.num_used:
            return buffer[..., : self.num_used, :]
        return mx.concatenate([buffer[..., self.cursor : self.num_used, :], buffer[..., : self.cursor, :]], axis=2)
