"""Attention of a whole bay: rows of any lengths in one buffer.

Forms compute the same and cost differently from device to device; the fused kernel, for one, is several times slower
with an array mask on CUDA. `attend` is where a form is chosen.
"""

from __future__ import annotations

from typing import Literal

import mlx.core as mx

from phyla.kv.plain.attention import attention_weights

AttentionForm = Literal["grouped", "fused"]
"""`grouped`: matrix products per key head, a `where`, a softmax in float32. `fused`: MLX's kernel with an array mask;
it has no softcap, so those layers are computed `grouped` in either form."""

DEFAULT_FORM: AttentionForm = "grouped"


def attend(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    visible: mx.array,
    *,
    scale: float,
    softcap: float | None = None,
    sinks: mx.array | None = None,
    form: AttentionForm = DEFAULT_FORM,
) -> mx.array:
    """Attention of L queries per row over the columns that each may see.

    Args:
        queries: (B, H, L, D), rotated, not yet scaled.
        keys: (B, K, S, D), the whole buffer: columns behind a row's end hold anything finite.
        values: (B, K, S, Dv).
        visible: (B, 1, L, S) booleans; at least one column per query.
        scale: factor on the scores.
        softcap: scores become `softcap * tanh(scores / softcap)`.
        sinks: (H,) logits that take weight and give nothing.
        form: how to compute it.

    Returns:
        (B, H, L, Dv) in the dtype of `queries`.
    """
    if form == "fused" and softcap is None:
        return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale, mask=visible, sinks=sinks)
    return _grouped(queries, keys, values, visible, scale, softcap, sinks)


def _grouped(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    visible: mx.array,
    scale: float,
    softcap: float | None,
    sinks: mx.array | None,
) -> mx.array:
    B, H, L, D = queries.shape
    K, S = keys.shape[1], keys.shape[2]
    # The queries of one key head side by side: one product reads the head's keys once for all of them.
    scores = (queries * scale).reshape(B, K, H // K * L, D) @ keys.swapaxes(-1, -2)
    weights = attention_weights(scores.reshape(B, K, H // K, L, S), visible, softcap=softcap, sinks=sinks)
    return (weights.reshape(B, K, H // K * L, S) @ values).reshape(B, H, L, values.shape[-1])
