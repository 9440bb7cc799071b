"""Scaled dot-product attention over plain keys and values, with mlx-lm's order of operations."""

from __future__ import annotations

import mlx.core as mx

from phyla.kv.plain.blockwise import attend_in_blocks, can_attend_in_blocks
from phyla.kv.plain.visible import KernelMask


def attend(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    mask: KernelMask,
    *,
    scale: float,
    softcap: float | None = None,
    sinks: mx.array | None = None,
    in_blocks: bool = False,
) -> mx.array:
    """Attention of L queries over S columns.

    Args:
        queries: (B, H, L, D), rotated, not yet scaled.
        keys: (B, K, S, D).
        values: (B, K, S, Dv).
        mask: None, "causal" (the last query sits on the last column), or boolean, broadcastable to (B, H, L, S).
        scale: factor on the scores.
        softcap: scores become `softcap * tanh(scores / softcap)`; no fused kernel does it.
        sinks: (H,) logits that take weight and give nothing.
        in_blocks: the bits needn't be mlx-lm's: attend block by block where that is faster.

    Returns:
        (B, H, L, Dv) in the dtype of `queries`.
    """
    if in_blocks and can_attend_in_blocks(queries, mask, softcap, sinks):
        return attend_in_blocks(queries, keys, values, scale)
    if softcap is None:
        return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale, mask=mask, sinks=sinks)
    return _attend_capped(queries, keys, values, mask, scale, softcap, sinks)


def _attend_capped(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    mask: KernelMask,
    scale: float,
    softcap: float,
    sinks: mx.array | None,
) -> mx.array:
    B, H, L, D = queries.shape
    K = keys.shape[1]
    grouped = (queries * scale).reshape(B, K, H // K, L, D)
    scores = grouped @ keys[:, :, None].swapaxes(-1, -2)
    weights = attention_weights(scores, mask, softcap=softcap, sinks=sinks)
    return (weights @ values[:, :, None]).reshape(B, H, L, values.shape[-1])


def attention_weights(
    scores: mx.array, mask: KernelMask, *, softcap: float | None = None, sinks: mx.array | None = None
) -> mx.array:
    """What each query gives to each column, from scores that are scaled already.

    Args:
        scores: (B, K, H / K, L, S).
        mask: as `attend` takes it.
        softcap: as `attend` takes it.
        sinks: (H,) logits that take weight and give nothing.

    Returns:
        The shape and dtype of `scores`; the softmax itself is float32.
    """
    B, K, num_repeats, L, S = scores.shape
    if softcap is not None:
        scores = mx.tanh(scores / softcap) * softcap
    allowed = _as_array(mask, L, S)
    if allowed is not None:
        if allowed.ndim == 4 and allowed.shape[1] == K * num_repeats:
            allowed = allowed.reshape(allowed.shape[0], K, num_repeats, *allowed.shape[2:])
        elif allowed.ndim == 4:
            allowed = allowed[:, :, None]
        scores = mx.where(allowed, scores, mx.array(mx.finfo(scores.dtype).min, scores.dtype))
    if sinks is None:
        return mx.softmax(scores, axis=-1, precise=True)
    column = mx.broadcast_to(sinks.astype(scores.dtype).reshape(1, K, num_repeats, 1, 1), (B, K, num_repeats, L, 1))
    return mx.softmax(mx.concatenate([scores, column], axis=-1), axis=-1, precise=True)[..., :S]


def _as_array(mask: KernelMask, num_queries: int, num_columns: int) -> mx.array | None:
    if not isinstance(mask, str):
        return mask
    last = mx.arange(num_columns - num_queries, num_columns)[:, None]
    return last >= mx.arange(num_columns)[None]
