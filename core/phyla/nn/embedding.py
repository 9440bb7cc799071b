"""Token embeddings, which may also serve as the output projection."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx

from phyla.nn.products import FastProducts
from phyla.nn.weight import Weight

if TYPE_CHECKING:
    from phyla.model.step import Overlay, Route, StepInput


class Embedding:
    """One row of E numbers per token id.

    Args:
        weight: (V, E), dense or quantised.
        products: how the weight is multiplied on the fast route; None multiplies it whole.
    """

    def __init__(self, weight: Weight, products: FastProducts | None = None) -> None:
        self.weight = weight
        self.products = products

    def __call__(self, ids: mx.array) -> mx.array:
        """(...,) int32 to (..., E)."""
        return self.weight.gather(ids)

    def project(self, hidden: mx.array, route: Route = "exact") -> mx.array:
        """The tied output projection: (..., E) to (..., V)."""
        if route == "fast" and self.products is not None:
            return self.products.multiply(self.weight, hidden)
        return self.weight.multiply(hidden)

    @property
    def arrays(self) -> list[mx.array]:
        return self.weight.arrays


def embed_step(embedding: Embedding, step: StepInput, scale: mx.array | None = None) -> mx.array:
    """Embeddings of a step's ids, times `scale`, with its overlay laid over them: (B*L, E).

    Overlay rows come scaled already.
    """
    hidden = embedding(step.ids.reshape(-1))
    if scale is not None:
        hidden = hidden * scale
    return hidden if step.overlay is None else _overlaid(hidden, step.overlay)


def _overlaid(hidden: mx.array, overlay: Overlay) -> mx.array:
    # A copy, not an assignment: the embeddings may be an array that someone else holds.
    covered = mx.array(hidden)
    covered[overlay.token_indices] = overlay.embeddings.astype(hidden.dtype)
    return covered
