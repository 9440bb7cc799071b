"""The gated feed-forward block."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx

from phyla.nn.activation import CompiledActivation, GatedActivation, is_swiglu
from phyla.nn.linear import FusedLinear, Linear

if TYPE_CHECKING:
    from phyla.model.step import Route


class GatedMLP:
    """`down(activation(gate(x), up(x)))`.

    Args:
        gate_up: two parts, gate then up.
        down: back to E.
        activation: applied to gate and up together.
    """

    def __init__(self, gate_up: FusedLinear, down: Linear, activation: GatedActivation) -> None:
        self.gate_up = gate_up
        self.down = down
        self.activation = activation

    def __call__(self, x: mx.array, route: Route) -> mx.array:
        """(..., E) in and out."""
        activation = self.activation
        if route == "fast" and is_swiglu(activation) and (activated := self.gate_up.gated(x)) is not None:
            return self.down(activated, route)
        gate, up = self.gate_up(x, route)
        if isinstance(activation, CompiledActivation):
            activation = activation.on_route(route)
        return self.down(activation(gate, up), route)

    @property
    def arrays(self) -> list[mx.array]:
        return [*self.gate_up.arrays, *self.down.arrays]
