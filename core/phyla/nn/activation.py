"""Gated activations, compiled into one kernel or not."""

from __future__ import annotations

import math
from collections.abc import Callable

import mlx.core as mx

GatedActivation = Callable[[mx.array, mx.array], mx.array]
"""`(gate, up) -> activated gate times up`, of one shape."""


def swiglu(gate: mx.array, up: mx.array) -> mx.array:
    """`silu(gate) * up`.

    Source:
        Shazeer 2020, section 2, eq. 6.
    """
    return gate * mx.sigmoid(gate) * up


def geglu(gate: mx.array, up: mx.array) -> mx.array:
    """`gelu(gate) * up`, gelu by the error function.

    Source:
        Shazeer 2020, section 2, eq. 6; Hendrycks and Gimpel 2016, section 2.
    """
    return gate * (1 + mx.erf(gate / math.sqrt(2))) / 2 * up


def geglu_tanh(gate: mx.array, up: mx.array) -> mx.array:
    """`gelu(gate) * up`, gelu by its tanh approximation.

    Source:
        Hendrycks and Gimpel 2016, section 2.
    """
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    return 0.5 * gate * (1 + mx.tanh(inner)) * up


def fused(activation: GatedActivation, compiled: bool) -> GatedActivation:
    """The activation as one kernel for any shape, or as it is (the plain twin) when `compiled` is off."""
    return mx.compile(activation, shapeless=True) if compiled else activation
