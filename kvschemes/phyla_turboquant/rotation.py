"""The rotation of values: random signs, then a Walsh-Hadamard transform; both are their own inverse."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import mlx.core as mx

_SIGN_BITS: Mapping[int, str] = MappingProxyType(
    {
        64: "712a96ed40127b46",
        128: "b0fb9c560a403956abecc1527b9a0628",
        256: "480c67468852b308f628b695937a39cbd94ff45ccebae44dd69b0ceaeac3d17f",
        512: (
            "bdd26c0eb0c7df46c6279c2b864b533af13ee2d9c248bb970c7b542a5d535dee"
            "217ce18818a83259a3c5204cf84e81ba4a28415143d9e571f7d2704ab6b9d694"
        ),
    }
)
"""By head size; a set bit is a minus, first number in the highest bit."""


Form = Literal["transform", "matrix"]
"""MLX's own transform, or a product with its matrix on devices where that transform hasn't been seen to run (CUDA)."""


class Rotation:
    """Of one head size. Spreads what sits in few numbers over all of them, so that one codebook fits every group.

    Source:
        Randomised Hadamard transform, Ailon and Chazelle 2006; natural (Sylvester) order, factor 1/sqrt(D).
    """

    def __init__(self, head_dim: int, form: Form = "transform") -> None:
        self._matrix = sylvester_matrix(head_dim) if form == "matrix" else None
        bits = f"{int(_SIGN_BITS[head_dim], 16):0{head_dim}b}"
        self._signs = mx.array([-1.0 if bit == "1" else 1.0 for bit in bits])

    def forward(self, rows: mx.array) -> mx.array:
        """(..., D) to its rotation, in float32."""
        return self._transform(rows.astype(mx.float32) * self._signs)

    def inverse(self, rotated: mx.array) -> mx.array:
        """Undo `forward`, in float32."""
        return self._transform(rotated.astype(mx.float32)) * self._signs

    def _transform(self, rows: mx.array) -> mx.array:
        return mx.hadamard_transform(rows) if self._matrix is None else rows @ self._matrix


def sylvester_matrix(head_dim: int) -> mx.array:
    """The orthonormal Hadamard matrix in natural order; symmetric, its own inverse."""
    matrix = mx.hadamard_transform(mx.eye(head_dim), stream=mx.cpu)
    # Evaluated: it outlives the row, and the thread, that it was made for.
    mx.eval(matrix)
    return matrix
