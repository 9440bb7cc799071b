"""The gated delta rule, 64 positions at a time: the same algebra as matrix products, for long steps.

Agrees with the recurrent form up to rounding, never bit for bit: one parity claim is about one form.

Source:
    Yang et al. 2024 (Gated Delta Networks), section 3.3, eq. 16 to 19; the inverse: Yang et al. 2024 (DeltaNet),
    section 3.2. We differ: the inverse is put together from halves by matrix products instead of row by row.
"""

from __future__ import annotations

import mlx.core as mx

from phyla_qwen35.delta_rule import for_value_heads

CHUNK = 64

CHUNKED_FROM = 16
"""Positions from which a chunk, filled up with nothing, is faster than single positions: measured twice as fast at 16
and eight times at 1024, on two CPU cores with 16 heads of 128."""


def chunked_rule(
    queries: mx.array, keys: mx.array, values: mx.array, log_kept: mx.array, rates: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """As `recurrent_rule`, with the logarithm of what is kept: 0 where the state must not move.

    Computes in float32.
    """
    num_positions, dtype = queries.shape[1], queries.dtype
    queries, keys = (_chunks(for_value_heads(one, values)) for one in (queries, keys))
    values, log_kept, rates = _chunks(values), _chunks(log_kept[..., None])[..., 0], _chunks(rates[..., None])
    # (B, H, N, 64, ...) from here on: N chunks, positions within a chunk last but one.
    since_start = mx.cumsum(log_kept, axis=-1)
    shares = _shares_between(since_start)
    unrolled = _inverse_of_one_plus(mx.tril(rates * (keys @ keys.swapaxes(-1, -2)) * shares, -1))
    changes = unrolled @ (rates * values)
    from_state = unrolled @ (rates * keys * mx.exp(since_start)[..., None])
    seen_by_queries = (queries @ keys.swapaxes(-1, -2)) * shares
    decayed_queries = queries * mx.exp(since_start)[..., None]
    until_end = mx.exp(since_start[..., -1:] - since_start)[..., None]
    decayed_keys, kept_by_chunk = (keys * until_end).swapaxes(-1, -2), mx.exp(since_start[..., -1])[..., None, None]

    folded = state.swapaxes(-1, -2)
    outputs = []
    for at in range(queries.shape[2]):
        change = changes[:, :, at] - from_state[:, :, at] @ folded
        outputs.append(decayed_queries[:, :, at] @ folded + seen_by_queries[:, :, at] @ change)
        folded = kept_by_chunk[:, :, at] * folded + decayed_keys[:, :, at] @ change
    joined = mx.concatenate(outputs, axis=2)[:, :, :num_positions]
    return joined.swapaxes(1, 2).astype(dtype), folded.swapaxes(-1, -2)


def _chunks(x: mx.array) -> mx.array:
    """(B, L, H, D) to (B, H, N, 64, D) in float32, zeros behind the end: they leave the state where it is."""
    B, L, H, D = x.shape
    x = mx.pad(x.astype(mx.float32), [(0, 0), (0, -L % CHUNK), (0, 0), (0, 0)])
    return x.swapaxes(1, 2).reshape(B, H, -1, CHUNK, D)


def _shares_between(since_start: mx.array) -> mx.array:
    """(..., 64) to (..., 64, 64): what position i still has of what position j wrote, 0 where j is later."""
    between = since_start[..., :, None] - since_start[..., None, :]
    is_past = mx.tril(mx.ones((CHUNK, CHUNK), dtype=mx.bool_))
    # Masked before the exponential: a later position's would overflow.
    return mx.exp(mx.where(is_past, between, -mx.inf))


def _inverse_of_one_plus(lower: mx.array) -> mx.array:
    """(I + lower)^-1 for strictly lower triangles, (..., 64, 64).

    From diagonal blocks of one, whose inverse is one, to blocks of twice the size:
    [[A, 0], [C, B]]^-1 = [[A^-1, 0], [-B^-1 C A^-1, B^-1]]. As stable as substituting row by row, in six steps.
    """
    inverse = mx.eye(CHUNK)
    at = mx.arange(CHUNK)
    size = 1
    while size < CHUNK:
        block, half = at // (2 * size), (at // size) % 2
        joins = (block[:, None] == block) & (half[:, None] == 1) & (half == 0)
        inverse = inverse - inverse @ mx.where(joins, lower, 0) @ inverse
        size *= 2
    return inverse
