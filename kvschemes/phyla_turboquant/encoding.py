"""The codec as storage: decode what is stored, attend, and rotate only what comes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import mlx.core as mx
from phyla.kv.plain.attention import attend

from phyla_turboquant.codec import KeyCodec, ValueCodec
from phyla_turboquant.rotation import Form
from phyla_turboquant.spec import TurboSpec, encoded_planes

if TYPE_CHECKING:
    from phyla.kv import LayerSpec, Plane
    from phyla.kv.plain.columns import Planes
    from phyla.kv.plain.visible import KernelMask


class TurboEncoding:
    """Of one layer.

    Attention is linear in the values, so they stay rotated while they are summed: undoing the rotation costs
    `L * D log D` instead of `S * D log D`.
    """

    def __init__(self, layer: LayerSpec, spec: TurboSpec, rotation: Form = "transform") -> None:
        keys, values = layer.plane("keys"), layer.plane("values")
        self.planes: Sequence[Plane] = encoded_planes(keys, values, spec)
        self._keys = KeyCodec(spec.key_bits)
        self._values = ValueCodec(values.width, spec.value_bits, rotation)

    def encode(self, keys: mx.array, values: mx.array) -> Planes:
        return *self._keys.encode(keys), *self._values.encode(values)

    def attend(
        self,
        queries: mx.array,
        planes: Planes,
        mask: KernelMask,
        *,
        scale: float,
        softcap: float | None,
        sinks: mx.array | None,
    ) -> mx.array:
        codes, scales, zeros, cells, sizes = planes
        keys = self._keys.decode(codes, scales, zeros).astype(queries.dtype)
        rotated = self._values.decode_rotated(cells, sizes).astype(queries.dtype)
        mixed = attend(queries, keys, rotated, mask, scale=scale, softcap=softcap, sinks=sinks)
        return self._values.rotation.inverse(mixed).astype(queries.dtype)
