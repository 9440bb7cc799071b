"""Ways of attending for many rows at once: rows of any lengths whose columns lie in one buffer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import mlx.core as mx

from phyla.kv.plain.attention import attention_weights
from phyla.kv.plain.powers import TO_POWERS, pays_by_powers, weighed
from phyla.kv.ragged_attention import attend_ragged


@dataclass(frozen=True)
class Scoring:
    """What a layer does to its scores."""

    scale: float
    softcap: float | None = None
    """Scores become `softcap * tanh(scores / softcap)`."""

    sinks: mx.array | None = None
    """(H,) logits that take weight and give nothing."""


class GroupAttention(Protocol):
    """One way."""

    def __call__(
        self, queries: mx.array, keys: mx.array, values: mx.array, visible: mx.array, scoring: Scoring
    ) -> mx.array:
        """Attend with L queries per row.

        Args:
            queries: (B, H, L, D), rotated, not yet scaled.
            keys: (B, K, S, D), the whole buffer: columns that nobody may see hold anything finite.
            values: (B, K, S, Dv).
            visible: (B, 1, L, S) booleans; at least one column per query.
            scoring: of the layer.

        Returns:
            (B, H, L, Dv) in the dtype of `queries`.
        """
        ...


def fused_mask(queries: mx.array, keys: mx.array, values: mx.array, visible: mx.array, scoring: Scoring) -> mx.array:
    """MLX's kernel with an array mask. It caps no scores."""
    assert scoring.softcap is None, "no fused kernel caps scores"
    return mx.fast.scaled_dot_product_attention(
        queries, keys, values, scale=scoring.scale, mask=visible, sinks=scoring.sinks
    )


def fused(queries: mx.array, keys: mx.array, values: mx.array, visible: mx.array, scoring: Scoring) -> mx.array:
    """MLX's kernel without a mask: every column is visible to every query, whatever `visible` says."""
    assert scoring.softcap is None, "no fused kernel caps scores"
    return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scoring.scale, sinks=scoring.sinks)


def grouped(queries: mx.array, keys: mx.array, values: mx.array, visible: mx.array, scoring: Scoring) -> mx.array:
    """Two matrix products per key head and a softmax in float32."""
    B, H, L, D = queries.shape
    K, S = keys.shape[1], keys.shape[2]
    by_powers = pays_by_powers(queries, scoring.softcap, scoring.sinks)
    scale = scoring.scale * (TO_POWERS if by_powers else 1)
    # The queries of one key head side by side: one product reads the head's keys once for all of them.
    scores = (queries * scale).reshape(B, K, H // K * L, D) @ keys.swapaxes(-1, -2)
    by_query = scores.reshape(B, K, H // K, L, S)
    if by_powers:
        seen = mx.where(visible[:, :, None], by_query, -math.inf).reshape(scores.shape)
        return weighed([(seen, values)]).reshape(B, H, L, values.shape[-1])
    weights = attention_weights(by_query, visible, softcap=scoring.softcap, sinks=scoring.sinks)
    return (weights.reshape(B, K, H // K * L, S) @ values).reshape(B, H, L, values.shape[-1])


def ragged(queries: mx.array, keys: mx.array, values: mx.array, visible: mx.array, scoring: Scoring) -> mx.array:
    """Our kernel for CUDA, which reads no column that nobody may see; its twin is `grouped`. It caps no scores."""
    assert scoring.softcap is None, "the kernel caps no scores"
    if scoring.sinks is not None:
        return grouped(queries, keys, values, visible, scoring)
    return attend_ragged(queries, keys, values, visible, scoring.scale)


ATTENTIONS: Mapping[str, GroupAttention] = MappingProxyType(
    {"fused": fused, "fused_mask": fused_mask, "grouped": grouped, "ragged": ragged}
)
"""By the names of the strategies. A kernel of one's own is entered here, and under its name in
`phyla.backend.strategy.names`. (`loop` isn't a way of attending for a group: its rows keep their own storage.)"""
