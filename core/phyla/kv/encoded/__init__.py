"""Storage for schemes that encode keys and values: a scheme gives an `Encoding`, everything else is here.

Windows, rewinding, cloning, rings, groups and the moment of conversion are the same for every encoding, so that a
scheme is its arithmetic and nothing more. Free of mlx until a state is created.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from phyla.kv.layer_spec import SLIDING, LayerSpec, Plane
from phyla.kv.plain import plain_bytes_per_token

if TYPE_CHECKING:
    from phyla.kv.encoded.encoding import Encoding
    from phyla.kv.state import LayerState


def create_encoded(layer: LayerSpec, encoding: Encoding, start: int = 0) -> LayerState:
    """An empty state of a full or sliding layer whose tokens are encoded.

    Args:
        layer: what it stores.
        encoding: how keys and values become planes.
        start: tokens that are stored before any is encoded; the first step is always computed on plain ones.
    """
    if layer.kind == SLIDING:
        from phyla.kv.encoded.ring import EncodedRingState

        return EncodedRingState(layer, encoding, start)
    from phyla.kv.encoded.full import EncodedFullState

    return EncodedFullState(layer, encoding, start)


def encoded_bytes_per_token(layer: LayerSpec, planes: Sequence[Plane], dtype: str) -> float:
    """Bytes that one more token adds to a layer that stores these planes."""
    return plain_bytes_per_token(replace(layer, planes=tuple(planes)), dtype)
