"""Gated activations, compiled into one kernel or not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import mlx.core as mx

if TYPE_CHECKING:
    from phyla.model.step import Route

GatedActivation = Callable[[mx.array, mx.array], mx.array]
"""`(gate, up) -> activated gate times up`, of one shape."""


def swiglu(gate: mx.array, up: mx.array) -> mx.array:
    """`silu(gate) * up`.

    Source:
        Shazeer 2020, section 2, eq. 6.
    """
    return gate * mx.sigmoid(gate) * up


def swiglu_by_powers(gate: mx.array, up: mx.array) -> mx.array:
    """`swiglu` with a power of two: MLX's exponential takes three times as long on a Linux CPU."""
    wide = gate.astype(mx.float32)
    return (wide * up / (1 + mx.power(mx.array(2.0), wide * -math.log2(math.e)))).astype(gate.dtype)


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
    return CompiledActivation(activation) if compiled else activation


def is_swiglu(activation: GatedActivation) -> bool:
    """Whether it is `swiglu`, as one kernel or not."""
    return (activation.plain if isinstance(activation, CompiledActivation) else activation) is swiglu


class CompiledActivation:
    """One kernel for any shape, with mlx-lm's bits; `on_route` may have others."""

    def __init__(self, activation: GatedActivation) -> None:
        self.plain = activation
        self._kernel: GatedActivation = mx.compile(activation, shapeless=True)
        is_on_cpu = mx.default_device().type == mx.DeviceType.cpu
        self._on_fast_route = swiglu_by_powers if is_on_cpu and activation is swiglu else self._kernel

    def __call__(self, gate: mx.array, up: mx.array) -> mx.array:
        return self._kernel(gate, up)

    def on_route(self, route: Route) -> GatedActivation:
        """The fastest way that the route allows."""
        return self._kernel if route == "exact" else self._on_fast_route
