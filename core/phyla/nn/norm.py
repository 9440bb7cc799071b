"""Root-mean-square normalisation."""

from __future__ import annotations

import mlx.core as mx


class RMSNorm:
    """`x * rsqrt(mean(x^2) + eps) * w`.

    Args:
        weight: (E,), as stored.
        eps: added under the root.
        adds_one: the stored weight is the difference to one (Gemma 1 to 3).

    Source:
        Zhang and Sennrich 2019, section 4, eq. 4.
    """

    def __init__(self, weight: mx.array, eps: float, adds_one: bool = False) -> None:
        self.weight = 1.0 + weight if adds_one else weight
        self.eps = eps

    def __call__(self, x: mx.array) -> mx.array:
        """(..., E) to (..., E)."""
        return mx.fast.rms_norm(x, self.weight, self.eps)

    @property
    def arrays(self) -> list[mx.array]:
        return [self.weight]
