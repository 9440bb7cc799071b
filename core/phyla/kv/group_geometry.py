"""The sizes that strategy tables know a layer's work by, when a group computes it for all rows at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phyla.backend.strategy import AppendGeometry, AttentionGeometry

if TYPE_CHECKING:
    from phyla.kv.layer_spec import LayerSpec


RAGGED_WIDTHS = (32, 64, 128, 256)
"""Of the heads that the kernel of `phyla.kv.ragged_attention` is written for; keys and values have the same."""


def attention_geometry(layer: LayerSpec, rows: int, stored: int) -> AttentionGeometry:
    """Of a layer that attends to keys and values."""
    keys = layer.plane("keys")
    return AttentionGeometry(rows, stored, layer.num_query_heads or keys.num_heads, keys.num_heads, keys.width)


def append_geometry(layer: LayerSpec, rows: int, stored: int) -> AppendGeometry:
    """Of a layer that stores keys and values."""
    keys = layer.plane("keys")
    return AppendGeometry(rows, stored, keys.num_heads, keys.width)


def usable_attention(layer: LayerSpec, *, is_capped: bool, is_stacked: bool) -> frozenset[str]:
    """Strategies that can run for rows of different lengths.

    Args:
        layer: attends to keys and values.
        is_capped: the scores are; no fused kernel does that.
        is_stacked: the rows share one buffer. Otherwise their group is still to be chosen, and `loop` is one.
    """
    names = {"grouped"} if is_capped else {"grouped", "fused_mask"}
    if not is_capped and why_not_ragged(layer.plane("keys").width, layer.plane("values").width) is None:
        names.add("ragged")
    return frozenset(names if is_stacked else names | {"loop"})


def usable_append(layer: LayerSpec, *, wraps: bool) -> frozenset[str]:
    """Strategies that can run for rows of a step at columns of their own.

    Args:
        layer: stores keys and values.
        wraps: its buffer is a ring.
    """
    names = {"scatter", "slices"}
    if why_not_rotated(layer.plane("keys").width, layer.plane("values").width, wraps=wraps) is None:
        names.add("rotated")
    return frozenset(names)


def why_not_rotated(key_width: int, value_width: int, *, wraps: bool) -> str | None:
    """What stands in the way of the kernel of `phyla.kv.rotated_append`, as a clause; None if nothing does.

    Args:
        key_width: of a key head.
        value_width: of a value head.
        wraps: the buffer is a ring: what is overwritten there may be what somebody still holds.
    """
    if wraps:
        return "it writes in place, which a ring whose columns are used again doesn't allow"
    return why_not_ragged(key_width, value_width)


def why_not_ragged(key_width: int, value_width: int) -> str | None:
    """What stands in the kernel's way, as a clause; None if nothing does.

    Args:
        key_width: of a key head.
        value_width: of a value head.
    """
    import mlx.core as mx

    if not mx.cuda.is_available():
        return "it is a CUDA kernel, and there is no such device here"
    if key_width != value_width or key_width not in RAGGED_WIDTHS:
        widths = ", ".join(map(str, RAGGED_WIDTHS))
        return f"it is written for heads of {widths} numbers, and here keys have {key_width} and values {value_width}"
    return None
