"""What a scheme gives: keys and values to planes, and attention over those planes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import mlx.core as mx

from phyla.kv.plain.attention import attend
from phyla.kv.plain.columns import Planes
from phyla.kv.plain.visible import KernelMask

if TYPE_CHECKING:
    from phyla.kv.layer_spec import LayerSpec, Plane


@dataclass(frozen=True)
class Stored:
    """What a row has stored of a layer, as attention meets it."""

    buffers: Planes
    """One array per plane, (1, heads, C, width), as they lie: C is `num_columns` or some more, which mean nothing."""

    num_columns: int

    @property
    def planes(self) -> Planes:
        """The columns that count, (1, heads, S, width) each."""
        return tuple(buffer[..., : self.num_columns, :] for buffer in self.buffers)

    def decoded(self, decode: Callable[[Planes], Planes]) -> Planes:
        """What `decode` makes of the columns, decoding the meaningless ones, too.

        Whole buffers: a kernel that wants its rows one behind the other has nothing to copy first, and a compiled
        function meets a shape that it has met before.
        """
        return tuple(plane[..., : self.num_columns, :] for plane in decode(self.buffers))


class Encoding(Protocol):
    """Stateless, and token by token: encoding a slice of tokens gives the slice of their encoding."""

    @property
    def planes(self) -> Sequence[Plane]:
        """What is stored per token, in the order of `encode`."""
        ...

    def encode(self, keys: mx.array, values: mx.array) -> Planes:
        """(1, K, L, D) keys and (1, K, L, Dv) values to one array per plane, (1, heads, L, width) each."""
        ...

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
        """Attention of (1, H, L, D) queries over the stored columns, with the meaning of plain attention.

        Returns:
            (1, H, L, Dv) in the dtype of `queries`.
        """
        ...


class PlainEncoding:
    """Keys and values as they come: what a row is stored in until its scheme takes over."""

    def __init__(self, layer: LayerSpec) -> None:
        self.planes: Sequence[Plane] = (layer.plane("keys"), layer.plane("values"))

    def encode(self, keys: mx.array, values: mx.array) -> Planes:
        return keys, values

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
        keys, values = stored.planes
        return attend(queries, keys, values, mask, scale=scale, softcap=softcap, sinks=sinks)
