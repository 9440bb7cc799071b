"""The columns of a ring: which tokens they stand for, and how a step changes them."""

from __future__ import annotations

from collections.abc import Mapping

import mlx.core as mx

from phyla.kv.plain.slab import SLAB_TOKENS
from phyla.kv.plain.visible import StepColumns


class RingColumns:
    """Keys and values of the last tokens of one row.

    A step of several positions puts the columns in temporal order and appends; `window - 1 + L` columns remain, so that
    each query still finds its window. A step of one position overwrites the oldest column of a full ring.

    Invariant: columns [0, num_used) are real. With `cursor == num_used` they are in temporal order; otherwise the ring
    has wrapped and `cursor` is its oldest column.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._keys: mx.array | None = None
        self._values: mx.array | None = None
        self.num_tokens = 0
        self.num_used = 0
        self.cursor = 0
        self._step_start = 0
        self._step_columns = 0

    @property
    def num_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self.buffers())

    def append(self, keys: mx.array, values: mx.array, num_real: int) -> None:
        """Take one step: (1, K, L, D) keys and (1, K, L, Dv) values, of which the first `num_real` count."""
        if num_real == 0:
            return
        self._step_start = self.num_tokens
        if keys.shape[2] == 1:
            self._write_one(keys, values)
        else:
            self._concatenate(keys, values, num_real)
        self.num_tokens += num_real

    def columns(self, width: int, num_real: int, includes_step: bool) -> tuple[mx.array, mx.array, StepColumns]:
        """Keys, values and what their columns stand for, for queries of the last step or of one after it."""
        assert self._keys is not None
        assert self._values is not None
        if not includes_step:
            keys, values = (self._in_order(buffer) for buffer in (self._keys, self._values))
            described = StepColumns(
                self.num_used, self.num_used, width, num_real, end=self.num_tokens, ring=self._window
            )
            return keys, values, described
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
        return self._keys[..., :count, :], self._values[..., :count, :], described

    def can_rewind_to(self, num_tokens: int) -> bool:
        """Whether the columns a state of `num_tokens` would attend to are all still here."""
        if num_tokens in (0, self.num_tokens):
            return True
        num_forgotten = self.num_tokens - self.num_used
        return 0 < num_tokens < self.num_tokens and max(0, num_tokens - self._window) >= num_forgotten

    def rewind(self, num_tokens: int) -> None:
        """Go back to `num_tokens`; `can_rewind_to` must have said yes."""
        if num_tokens == 0:
            self._keys = self._values = None
            self.num_used = self.cursor = self.num_tokens = 0
        elif num_tokens < self.num_tokens:
            self.num_used -= self.num_tokens - num_tokens
            self.cursor = self.num_used
            self.num_tokens = num_tokens

    def clone(self) -> RingColumns:
        """Fresh handles on the same buffers."""
        copy = RingColumns(self._window)
        copy._keys = None if self._keys is None else self._keys[:]
        copy._values = None if self._values is None else self._values[:]
        copy.num_tokens, copy.num_used, copy.cursor = self.num_tokens, self.num_used, self.cursor
        return copy

    def copied(self) -> tuple[int, int, dict[str, mx.array]]:
        """How many columns matter, the cursor among them, and the columns as they lie, in arrays of that size.

        After a wide step the ring holds more than its window. The next step would drop them, so they stay behind here.
        """
        if self._keys is None or self._values is None or self.num_used == 0:
            return 0, 0, {}
        num_columns = min(self.num_used, self._window)
        surplus = self.num_used - num_columns
        planes = {
            "keys": mx.array(self._keys[..., surplus : self.num_used, :]),
            "values": mx.array(self._values[..., surplus : self.num_used, :]),
        }
        return num_columns, self.cursor - surplus, planes

    def restore(self, planes: Mapping[str, mx.array], num_tokens: int, num_used: int, cursor: int) -> None:
        """Take over what `copied` gave."""
        self._keys, self._values = planes.get("keys"), planes.get("values")
        self.num_tokens, self.num_used, self.cursor = num_tokens, num_used, cursor

    def buffers(self) -> list[mx.array]:
        return [buffer for buffer in (self._keys, self._values) if buffer is not None]

    def _concatenate(self, keys: mx.array, values: mx.array, num_real: int) -> None:
        num_before = min(self.num_used, self._window - 1)
        self._keys = self._joined(self._keys, keys, num_before)
        self._values = self._joined(self._values, values, num_before)
        self._step_columns = num_before + keys.shape[2]
        self.num_used = self.cursor = num_before + num_real

    def _joined(self, buffer: mx.array | None, rows: mx.array, num_before: int) -> mx.array:
        # `[:]`: the caller's array object must not be written into by the next step.
        if buffer is None or num_before == 0:
            return rows[:]
        return mx.concatenate([self._in_order(buffer)[..., self.num_used - num_before :, :], rows], axis=2)

    def _write_one(self, keys: mx.array, values: mx.array) -> None:
        if self.num_used >= self._window:
            self._keys, self._values = self._cut(self._keys), self._cut(self._values)
            self.num_used = self._window
            column = 0 if self.cursor >= self._window else self.cursor
        else:
            self._keys, self._values = self._with_room(self._keys, keys), self._with_room(self._values, values)
            column = self.num_used
            self.num_used += 1
        self._keys[..., column : column + 1, :] = keys
        self._values[..., column : column + 1, :] = values
        self.cursor = column + 1
        self._step_columns = self.num_used

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
