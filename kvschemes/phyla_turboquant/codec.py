"""Keys as affine codes per group of 32, values as cells of a codebook per group of 32 of their rotation.

Source:
    Zandieh et al. 2025, TurboQuant, in the form that is in use: keys aren't rotated (whatever descriptions of it say),
    since their errors pass through an exponential and their channels differ; values are.
    We differ: a group of keys whose scale or zero point float16 can't hold is stored as its midpoint. Elsewhere such
    groups (any constant one) decode to NaN.
"""

from __future__ import annotations

from collections.abc import Mapping

import mlx.core as mx

from phyla_turboquant.codebooks import CENTROIDS, boundaries
from phyla_turboquant.packing import packed, unpacked
from phyla_turboquant.rotation import Form, Rotation
from phyla_turboquant.spec import GROUP_SIZE, SIGNED_BITS

CELLS_TOGETHER: Mapping[int, int] = {2: 4, 3: 4, 4: 2, 5: 2, 8: 1}
"""Cells that are looked up at once, by bits of each: looking up is what decoding costs, and a table of 4096 fits."""

EPSILON = 1e-8
LARGEST_FLOAT16 = 65504.0
SIGNED_LIMIT = 127
"""-128 isn't used."""


class KeyCodec:
    """Of keys at so many bits: 8 are signed codes around the group's middle, fewer count up from its minimum."""

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._is_signed = bits == SIGNED_BITS

    def encode(self, keys: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        """(..., D) to codes (..., D * bits / 8), scales and zero points (..., D / 32), both float16."""
        # float32: in bfloat16 codes shift at the edges of cells.
        groups = _grouped(keys.astype(mx.float32))
        low, high = groups.min(axis=-1, keepdims=True), groups.max(axis=-1, keepdims=True)
        num_cells = 2 * SIGNED_LIMIT if self._is_signed else 2**self._bits - 1
        scale = (high - low) / num_cells
        zero = mx.round(((high + low) / 2 if self._is_signed else low) / (scale + EPSILON))
        lowest, highest = (-SIGNED_LIMIT, SIGNED_LIMIT) if self._is_signed else (0, num_cells)
        codes = mx.clip(mx.round(groups / (scale + EPSILON) - zero), lowest, highest)
        codes, scale, zero = self._guarded(codes, scale, zero, (high + low) / 2)
        flat = codes.reshape(keys.shape)
        stored = flat.astype(mx.int8) if self._is_signed else packed(flat, self._bits)
        return stored, scale[..., 0].astype(mx.float16), zero[..., 0].astype(mx.float16)

    def decode(self, stored: mx.array, scale: mx.array, zero: mx.array, dtype: mx.Dtype = mx.float32) -> mx.array:
        """Keys, computed in float32."""
        codes = stored if self._is_signed else unpacked(stored, self._bits)
        groups = _grouped(codes).astype(mx.float32)
        decoded = (groups + zero[..., None].astype(mx.float32)) * scale[..., None].astype(mx.float32)
        return decoded.astype(dtype).reshape(codes.shape)

    def _guarded(
        self, codes: mx.array, scale: mx.array, zero: mx.array, middle: mx.array
    ) -> tuple[mx.array, mx.array, mx.array]:
        """Groups that float16 can't describe as their midpoint: `(0 + sign) * |middle|`."""
        is_lost = (scale.astype(mx.float16) == 0) | (mx.abs(zero) > LARGEST_FLOAT16)
        return (
            mx.where(is_lost, 0, codes),
            mx.where(is_lost, mx.abs(middle), scale),
            mx.where(is_lost, mx.sign(middle), zero),
        )


class ValueCodec:
    """Of values of one head size at so many bits."""

    def __init__(self, head_dim: int, bits: int, rotation: Form = "transform") -> None:
        self._bits = bits
        self._head_dim = head_dim
        self.rotation = Rotation(head_dim, rotation)
        self._together = CELLS_TOGETHER[bits]
        self._cells_of = _table(CENTROIDS[bits], bits, self._together)
        self._boundaries = mx.array(boundaries(bits))

    def encode(self, values: mx.array) -> tuple[mx.array, mx.array]:
        """(..., D) to codes (..., D * bits / 8) and root mean squares (..., D / 32), float16."""
        groups = _grouped(self.rotation.forward(values))
        size = mx.sqrt(mx.mean(mx.square(groups), axis=-1, keepdims=True))
        cells = self._cells(groups / (size + EPSILON)).reshape(values.shape)
        return packed(cells, self._bits), size[..., 0].astype(mx.float16)

    def decode_rotated(self, stored: mx.array, size: mx.array, dtype: mx.Dtype = mx.float32) -> mx.array:
        """Values, still rotated: whoever sums them with weights may rotate the sum back instead of each.

        Computed in float32.
        """
        cells = self._cells_of[unpacked(stored, self._bits, self._together)]
        groups = _grouped(cells.reshape(*stored.shape[:-1], self._head_dim))
        decoded = (groups * size[..., None].astype(mx.float32)).astype(dtype)
        return decoded.reshape(*stored.shape[:-1], self._head_dim)

    def decode(self, stored: mx.array, size: mx.array) -> mx.array:
        """float32 values."""
        return self.rotation.inverse(self.decode_rotated(stored, size))

    def _cells(self, numbers: mx.array) -> mx.array:
        """How many boundaries lie below each number, by bisection; one on a boundary belongs to the lower cell."""
        below = mx.zeros(numbers.shape, dtype=mx.uint32)
        for bit in reversed(range(self._bits)):
            candidate = below + 2**bit
            below = mx.where(numbers > self._boundaries[candidate - 1], candidate, below)
        return below


def _grouped(rows: mx.array) -> mx.array:
    return rows.reshape(*rows.shape[:-1], rows.shape[-1] // GROUP_SIZE, GROUP_SIZE)


def _table(centroids: tuple[float, ...], bits: int, together: int) -> mx.array:
    """(2^(bits * together), together) float32: what so many cells in a row decode to, the first in the lowest bits."""
    numbers = mx.arange(2 ** (bits * together))[:, None]
    cells = (numbers >> (bits * mx.arange(together))) & (2**bits - 1)
    table = mx.array(centroids)[cells]
    # Evaluated: it outlives the row, and the thread, that it was made for.
    mx.eval(table)
    return table
