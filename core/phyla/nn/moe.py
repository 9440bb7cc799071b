"""Feed-forward blocks in which a router chooses the experts of each token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import mlx.core as mx

from phyla.nn.experts import GatedExperts
from phyla.nn.linear import Linear
from phyla.nn.mlp import GatedMLP

if TYPE_CHECKING:
    from phyla.model.step import Route


@dataclass(frozen=True)
class SoftmaxRouter:
    """Chooses the likeliest experts of each token.

    Source:
        Shazeer et al. 2017, section 2.1, without noise; the order of softmax and choice as in Switch Transformers
        (Fedus et al. 2021, section 2.1, eq. 1).
    """

    scores: Linear
    """E to one score per expert."""

    num_chosen: int
    is_normalised: bool = True
    """The shares of the chosen experts are made to sum to one."""

    def __call__(self, x: mx.array) -> tuple[mx.array, mx.array]:
        """(..., E) to expert ids and their shares, each (..., k)."""
        shares = mx.softmax(self.scores(x), axis=-1, precise=True)
        chosen = mx.argpartition(shares, kth=-self.num_chosen, axis=-1)[..., -self.num_chosen :]
        shares = mx.take_along_axis(shares, chosen, axis=-1)
        return chosen, shares / shares.sum(axis=-1, keepdims=True) if self.is_normalised else shares


class SharedExpertMLP:
    """The chosen experts' outputs by their shares, and a gated expert that every token uses.

    Args:
        router: chooses.
        experts: the routed experts.
        shared: the expert of all tokens.
        shared_gate: E to one number, whose sigmoid is the shared expert's share.

    Source:
        Dai et al. 2024 (DeepSeekMoE), section 3.2, for the shared expert; its gate as in Qwen1.5-MoE.
    """

    def __init__(self, router: SoftmaxRouter, experts: GatedExperts, shared: GatedMLP, shared_gate: Linear) -> None:
        self.router = router
        self.experts = experts
        self.shared = shared
        self.shared_gate = shared_gate

    def __call__(self, x: mx.array, route: Route) -> mx.array:
        """(..., E) in and out."""
        chosen, shares = self.router(x)
        routed = (self.experts(x, chosen) * shares[..., None]).sum(axis=-2)
        return routed + mx.sigmoid(self.shared_gate(x)) * self.shared(x, route)
