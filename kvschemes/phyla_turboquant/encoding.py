"""The codec as storage: decode what is stored, attend, and rotate only what comes out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import mlx.core as mx
from phyla.kv.plain.attention import attend
from phyla.kv.plain.columns import Planes

from phyla_turboquant.codec import KeyCodec, ValueCodec
from phyla_turboquant.spec import TurboSpec, encoded_planes

if TYPE_CHECKING:
    from phyla.kv import Plane
    from phyla.kv.encoded.encoding import Stored
    from phyla.kv.plain.visible import KernelMask


NARROW = 16
"""Positions of a step whose encoding is compiled: decode and verify. Others are rare and come in many widths."""

Decode = Callable[[Planes], Planes]


class TurboEncoding:
    """Of all layers that store such planes.

    Attention is linear in the values, so they stay rotated while they are summed: undoing the rotation costs
    `L * D log D` instead of `S * D log D`.

    Args:
        keys: what is encoded.
        values: what is encoded beside them.
        spec: bits of both.
        on_cuda: rotate by products with a matrix, MLX's transform not having been seen to run there, and compile: some
            sixty kernels per layer and step become a dozen. On a CPU, where starting one costs little, that isn't worth
            a compiler's seconds.
    """

    def __init__(self, keys: Plane, values: Plane, spec: TurboSpec, *, on_cuda: bool = False) -> None:
        self.planes: Sequence[Plane] = encoded_planes(keys, values, spec)
        self._keys = KeyCodec(spec.key_bits)
        self._values = ValueCodec(values.width, spec.value_bits, "matrix" if on_cuda else "transform")
        self._is_compiled = on_cuda
        self._encode_narrow = mx.compile(self._encode) if on_cuda else self._encode
        self._decoders: dict[mx.Dtype, Decode] = {}

    def encode(self, keys: mx.array, values: mx.array) -> Planes:
        return self._encode_narrow(keys, values) if keys.shape[2] <= NARROW else self._encode(keys, values)

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
        decode = self._decoder(queries.dtype)
        keys, rotated = stored.decoded(decode) if self._is_compiled else decode(stored.planes)
        mixed = attend(queries, keys, rotated, mask, scale=scale, softcap=softcap, sinks=sinks)
        return self._values.rotation.inverse(mixed).astype(queries.dtype)

    def _encode(self, keys: mx.array, values: mx.array) -> Planes:
        return *self._keys.encode(keys), *self._values.encode(values)

    def _decoder(self, dtype: mx.Dtype) -> Decode:
        if dtype not in self._decoders:

            def decode(planes: Planes) -> Planes:
                codes, scales, zeros, cells, sizes = planes
                return self._keys.decode(codes, scales, zeros, dtype), self._values.decode_rotated(cells, sizes, dtype)

            self._decoders[dtype] = mx.compile(decode) if self._is_compiled else decode
        return self._decoders[dtype]
