"""The softmax over scores in powers of two, for the fast route on a CPU: close to MLX's own, but not its bits.

MLX's exponential on a CPU isn't vectorised and takes three times as long as a power of two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import mlx.core as mx

TO_POWERS = math.log2(math.e)
"""Factor on scores that are meant as exponents of e."""


def pays_by_powers(queries: mx.array, softcap: float | None, sinks: mx.array | None) -> bool:
    """Whether `weighed` does what a layer asks for, where it is worth it."""
    is_plain = softcap is None and sinks is None
    return is_plain and queries.dtype == mx.float32 and mx.default_device().type == mx.DeviceType.cpu


def weighed(parts: Sequence[tuple[mx.array, mx.array]]) -> mx.array:
    """Attention from scores that are exponents of two.

    Args:
        parts: scores (B, K, M, S), minus infinity where nobody may see, and values (B, K, S, Dv), of as many columns as
            each part has. Each of the M has a score somewhere.

    Returns:
        (B, K, M, Dv).
    """
    highest = reduce(mx.maximum, (scores.max(axis=-1, keepdims=True) for scores, _ in parts))
    weights = [mx.power(mx.array(2.0), scores - highest) for scores, _ in parts]
    totals = reduce(mx.add, (one.sum(axis=-1, keepdims=True) for one in weights))
    # Divided once behind the products: that is fewer numbers than the weights are.
    return reduce(mx.add, (one @ values for one, (_, values) in zip(weights, parts, strict=True))) / totals
