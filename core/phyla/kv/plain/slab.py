"""One growing array: tokens along axis 2, room in slabs of 256."""

from __future__ import annotations

import mlx.core as mx

SLAB_TOKENS = 256


class Slab:
    """Owns a buffer of (1, heads, capacity, width); what lies behind the owner's count is dead.

    MLX writes in place into every alias of an array object, so no two slabs ever hold the same object: `clone` takes a
    fresh handle, which costs nothing until either side writes.
    """

    def __init__(self, buffer: mx.array | None = None) -> None:
        self._buffer = buffer

    @property
    def num_bytes(self) -> int:
        return 0 if self._buffer is None else self._buffer.nbytes

    def write(self, start: int, rows: mx.array) -> None:
        """Store (1, heads, L, width) at `start`, growing when they don't fit."""
        end = start + rows.shape[2]
        if self._buffer is None or end > self._buffer.shape[2]:
            self._grow(start, rows)
        assert self._buffer is not None
        # Plain slices: an ellipsis costs as much again on the host, twice per layer and step.
        self._buffer[:, :, start:end] = rows

    def view(self, num_tokens: int) -> mx.array:
        """The first `num_tokens`; may alias the buffer."""
        assert self._buffer is not None, "nothing was ever written"
        return self._buffer[:, :, :num_tokens]

    def copied(self, num_tokens: int) -> mx.array:
        """The first `num_tokens` in an array of exactly that size and with bytes of its own."""
        # Not `mx.contiguous`: it hands out the buffer itself when less than 16 KiB of it would be slack.
        return mx.array(self.view(num_tokens))

    def clone(self) -> Slab:
        return Slab(None if self._buffer is None else self._buffer[:])

    def buffers(self) -> list[mx.array]:
        return [] if self._buffer is None else [self._buffer]

    def _grow(self, used: int, rows: mx.array) -> None:
        batch, num_heads, num_new, width = rows.shape
        num_slabs = (num_new + SLAB_TOKENS - 1) // SLAB_TOKENS
        room = mx.zeros((batch, num_heads, num_slabs * SLAB_TOKENS, width), dtype=rows.dtype)
        if self._buffer is None or used == 0:
            self._buffer = room
        else:
            self._buffer = mx.concatenate([self._buffer[..., :used, :], room], axis=2)
