"""Rotation by tables that all layers of a step share: the bits of `mx.fast.rope` on a CPU, in a quarter of the time.

On a CPU `mx.fast.rope` takes sines and cosines again in every call, twice a layer: a sixth of a decode step of a small
model. Elsewhere it is one kernel, and this isn't used.
"""

from __future__ import annotations

import math

import mlx.core as mx


class RopeTables:
    """Cosines and sines of the positions seen last, for one rotation.

    Args:
        num_dims: rotated numbers per head.
        base: period base, or None when `periods` are given.
        periods: (num_dims / 2,) wavelengths over 2 pi, or None when `base` is given.
        position_scale: factor on positions.
    """

    def __init__(self, num_dims: int, base: float | None, periods: mx.array | None, position_scale: float) -> None:
        self._num_dims = num_dims
        self._base = base
        self._periods = periods
        self._scale = position_scale
        self._seen: tuple[int, int | mx.array] | None = None
        self._tables = (mx.zeros(()), mx.zeros(()))

    def rotate(self, heads: mx.array, offset: int | mx.array) -> mx.array:
        """(B, heads, L, D) float32 in and out; row b starts at position `offset` or `offset[b]`."""
        num_positions = heads.shape[2]
        if not self._has(num_positions, offset):
            self._seen = (num_positions, offset)
            self._tables = self._of(num_positions, offset)
        half, rotated = self._num_dims // 2, heads[..., : self._num_dims]
        swapped = mx.concatenate([heads[..., half : self._num_dims], heads[..., :half]], axis=-1)
        cosines, sines = self._tables
        turned = rotated * cosines + swapped * sines
        if self._num_dims == heads.shape[3]:
            return turned
        return mx.concatenate([turned, heads[..., self._num_dims :]], axis=-1)

    def _has(self, num_positions: int, offset: int | mx.array) -> bool:
        """An array is known by being the same object, as it is for all layers of a step; its numbers aren't read."""
        if self._seen is None or self._seen[0] != num_positions:
            return False
        seen = self._seen[1]
        return seen is offset or (isinstance(seen, int) and isinstance(offset, int) and seen == offset)

    def _of(self, num_positions: int, offset: int | mx.array) -> tuple[mx.array, mx.array]:
        """Cosines and signed sines, each (L, num_dims), or (B, 1, L, num_dims) where rows have offsets of their own."""
        # The operations of MLX's own fallback in its order: another order moves the last bits.
        half = self._num_dims // 2
        start = offset if isinstance(offset, int) else offset.reshape(-1, 1, 1)
        positions = (mx.arange(num_positions, dtype=mx.float32) + start) * self._scale
        if self._periods is not None:
            frequencies = mx.reciprocal(self._periods)
        else:
            assert self._base is not None
            exponents = mx.arange(0, -half, -1, dtype=mx.float32)
            frequencies = mx.exp(exponents * mx.array(math.log(self._base) / half, dtype=mx.float32))
        angles = positions[..., None] * frequencies
        cosines, sines = mx.cos(angles), mx.sin(angles)
        # The sign is in the table: a sum with a negated product has the bits of a difference.
        return mx.concatenate([cosines, cosines], axis=-1), mx.concatenate([-sines, sines], axis=-1)
