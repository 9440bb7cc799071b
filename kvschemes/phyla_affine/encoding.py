"""Codes, scales and biases, and attention that multiplies by them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import mlx.core as mx
from phyla.kv.plain.attention import attend, attention_weights

from phyla_affine.spec import LayerForm, quantised_planes

if TYPE_CHECKING:
    from phyla.kv import LayerSpec, Plane
    from phyla.kv.encoded.encoding import Stored
    from phyla.kv.plain.columns import Planes
    from phyla.kv.plain.visible import KernelMask

Products = Literal["quantised", "tiled", "dense"]
"""How scores and outputs are taken.

By MLX's quantised matmul. Or, where that has no kernel for four axes (CUDA), from dequantised columns: tile by tile, or
all at once with the fused kernel, a dozen launches per layer instead of a hundred.
"""

TILE_TOKENS = 2048
MOST_DENSE_BYTES = 1 << 30
"""Of one layer's dequantised keys and values; rows that would need more are attended to in tiles."""


class AffineEncoding:
    """Of one layer.

    Args:
        layer: whose keys and values.
        form: bits and group size.
        products: what goes well on the device.
        fused_prefill: attend as "dense" does where a step has several queries, whatever `products` says.
    """

    def __init__(
        self,
        layer: LayerSpec,
        form: LayerForm,
        products: Products = "quantised",
        *,
        fused_prefill: bool = False,
        most_dense_bytes: int = MOST_DENSE_BYTES,
    ) -> None:
        self._form = form
        self._products = products
        self._fused_prefill = fused_prefill
        self._most_dense = most_dense_bytes
        self._numbers_per_token = sum(plane.num_heads * plane.width for plane in layer.planes)
        self.planes: Sequence[Plane] = quantised_planes((layer.plane("keys"), layer.plane("values")), form)

    def encode(self, keys: mx.array, values: mx.array) -> Planes:
        return *self._quantise(keys), *self._quantise(values)

    def attend(
        self,
        queries: mx.array,
        stored: Stored,
        mask: KernelMask,
        *,
        scale: float,
        softcap: float | None,
        sinks: mx.array | None,
    ) -> mx.array:
        B, H, L, D = queries.shape
        if self._is_dense(stored, L, queries.dtype):
            whole = stored.decoded(lambda planes: (self._dequantise(planes[:3]), self._dequantise(planes[3:])))
            return attend(queries, whole[0], whole[1], mask, scale=scale, softcap=softcap, sinks=sinks)
        keys, values = stored.planes[:3], stored.planes[3:]
        K = keys[0].shape[1]
        # The order of mlx-lm's operations, which decides the low bits: scale, scores, mask, softmax, output.
        grouped = (queries * scale).reshape(B, K, H // K, L, D)
        weights = attention_weights(self._scores(grouped, keys), mask, softcap=softcap, sinks=sinks)
        return self._mixed(weights, values).reshape(B, H, L, -1)

    def _is_dense(self, stored: Stored, width: int, dtype: mx.Dtype) -> bool:
        if self._fused_prefill and width > 1:
            return True
        return (
            self._products == "dense" and self._numbers_per_token * dtype.size * stored.num_columns <= self._most_dense
        )

    def _scores(self, queries: mx.array, keys: Planes) -> mx.array:
        if self._products == "quantised":
            return self._matmul(queries, keys, transpose=True)
        tiles = [queries @ self._dequantise(tile)[:, :, None].swapaxes(-1, -2) for tile in _tiles(keys)]
        return mx.concatenate(tiles, axis=-1) if len(tiles) > 1 else tiles[0]

    def _mixed(self, weights: mx.array, values: Planes) -> mx.array:
        if self._products == "quantised":
            return self._matmul(weights, values, transpose=False)
        total = mx.zeros(())
        for index, tile in enumerate(_tiles(values)):
            part = weights[..., index * TILE_TOKENS : (index + 1) * TILE_TOKENS] @ self._dequantise(tile)[:, :, None]
            # float32: tiles are as many as the row is long.
            total = total + part.astype(mx.float32)
        return total.astype(weights.dtype)

    def _matmul(self, left: mx.array, planes: Planes, *, transpose: bool) -> mx.array:
        codes, scales, biases = (plane[:, :, None] for plane in planes)
        return mx.quantized_matmul(
            left, codes, scales, biases, transpose=transpose, group_size=self._form.group_size, bits=self._form.bits
        )

    def _quantise(self, rows: mx.array) -> Planes:
        codes, scales, biases = mx.quantize(rows, group_size=self._form.group_size, bits=self._form.bits)
        return codes, scales, biases

    def _dequantise(self, planes: Planes) -> mx.array:
        codes, scales, biases = planes
        return mx.dequantize(codes, scales, biases, group_size=self._form.group_size, bits=self._form.bits)


def _tiles(planes: Planes) -> list[Planes]:
    num_columns = planes[0].shape[2]
    return [
        tuple(plane[:, :, start : start + TILE_TOKENS] for plane in planes)
        for start in range(0, num_columns, TILE_TOKENS)
    ]
