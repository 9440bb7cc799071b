"""The gated delta rule, one position after the other: the form that mlx-lm computes, and the reference of the others.

Source:
    Yang et al. 2024 (Gated Delta Networks), section 3.1, eq. 10; the decay as in Mamba-2 (Dao and Gu 2024, section 7).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import mlx.core as mx

NORM_EPS = 1e-6
"""Added to the sum of squares that queries and keys are divided by."""

P = ParamSpec("P")
R = TypeVar("R")

RulePosition = Callable[[mx.array, mx.array, mx.array, mx.array, mx.array, mx.array], tuple[mx.array, mx.array]]
"""`(query, key, value, decay, rate, state) -> (output, state)`; see `position`."""


def normalised(queries: mx.array, keys: mx.array) -> tuple[mx.array, mx.array]:
    """Queries and keys of unit length, queries also times `Dk ** -0.5`; (..., Dk) each.

    By the root-mean-square kernel: its mean instead of a sum puts `Dk ** -0.5` into the factors and the epsilon. The
    value is that of the direct way and the rounding is mlx-lm's.
    """
    scale: float = keys.shape[-1] ** -0.5
    eps = NORM_EPS * scale**2
    queries = (scale**2) * mx.fast.rms_norm(queries, None, eps)
    return queries, scale * mx.fast.rms_norm(keys, None, eps)


def log_decay(stored: mx.array, decay: mx.array, bias: mx.array) -> mx.array:
    """Logarithm of what is left of the state after a position, float32, at most 0.

    Args:
        stored: (Hv,), `A_log`.
        decay: (..., Hv), the layer's projection.
        bias: (Hv,), `dt_bias`.
    """
    return -mx.exp(stored.astype(mx.float32)) * mx.logaddexp(decay + bias, 0)


def kept_share(stored: mx.array, decay: mx.array, bias: mx.array) -> mx.array:
    """`exp(log_decay)`, in (0, 1)."""
    return mx.exp(log_decay(stored, decay, bias))


def position(
    query: mx.array, key: mx.array, value: mx.array, kept: mx.array, rate: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """One position: the state forgets, then what it recalls for the key is moved towards the value.

    Args:
        query: (B, H, Dk).
        key: (B, H, Dk).
        value: (B, H, Dv).
        kept: (B, H), the share of the state that stays.
        rate: (B, H), how far it is moved, in (0, 1).
        state: (B, H, Dv, Dk), float32.

    Returns:
        (B, H, Dv) in the dtype of `query`, and the new state.
    """
    state = state * kept[..., None, None]
    recalled = (state * key[..., None, :]).sum(axis=-1)
    change = (value - recalled) * rate[..., None]
    state = state + key[..., None, :] * change[..., None]
    return (state * query[..., None, :]).sum(axis=-1).astype(query.dtype), state


def recurrent_rule(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    kept: mx.array,
    rates: mx.array,
    state: mx.array,
    position: RulePosition = position,
) -> tuple[mx.array, mx.array]:
    """All positions in turn.

    Args:
        queries: (B, L, Hk, Dk), normalised.
        keys: (B, L, Hk, Dk), normalised.
        values: (B, L, Hv, Dv).
        kept: (B, L, Hv), 1 where the state must not move.
        rates: (B, L, Hv), 0 where the state must not move.
        state: (B, Hv, Dv, Dk), float32.
        position: the formula, compiled or not.

    Returns:
        (B, L, Hv, Dv) and the new state.
    """
    queries, keys = for_value_heads(queries, values), for_value_heads(keys, values)
    outputs = []
    for at in range(queries.shape[1]):
        output, state = position(queries[:, at], keys[:, at], values[:, at], kept[:, at], rates[:, at], state)
        outputs.append(output)
    return mx.stack(outputs, axis=1), state


def for_value_heads(keys: mx.array, values: mx.array) -> mx.array:
    """Each key head once per value head it serves: (B, L, Hk, Dk) to (B, L, Hv, Dk)."""
    num_repeats = values.shape[-2] // keys.shape[-2]
    return mx.repeat(keys, num_repeats, axis=-2) if num_repeats > 1 else keys


def compiled(function: Callable[P, R], is_compiled: bool) -> Callable[P, R]:
    """The function as one kernel where its operations allow it, or as it is (the plain twin)."""
    return mx.compile(function) if is_compiled else function
