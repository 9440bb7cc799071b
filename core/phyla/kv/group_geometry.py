"""The sizes that strategy tables know a layer's work by, when a group computes it for all rows at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phyla.backend.strategy import AppendGeometry, AttentionGeometry

if TYPE_CHECKING:
    from phyla.kv.layer_spec import LayerSpec


def attention_geometry(layer: LayerSpec, rows: int, stored: int) -> AttentionGeometry:
    """Of a layer that attends to keys and values."""
    keys = layer.plane("keys")
    return AttentionGeometry(rows, stored, layer.num_query_heads or keys.num_heads, keys.num_heads, keys.width)


def append_geometry(layer: LayerSpec, rows: int, stored: int) -> AppendGeometry:
    """Of a layer that stores keys and values."""
    keys = layer.plane("keys")
    return AppendGeometry(rows, stored, keys.num_heads, keys.width)


def usable_attention(*, is_capped: bool, is_stacked: bool) -> frozenset[str]:
    """Strategies that can run for rows of different lengths.

    Args:
        is_capped: the scores are; no fused kernel does that.
        is_stacked: the rows share one buffer. Otherwise their group is still to be chosen, and `loop` is one.
    """
    by_mask = frozenset({"grouped"} if is_capped else {"grouped", "fused_mask"})
    return by_mask if is_stacked else by_mask | {"loop"}
