"""The decoder most families are: an embedding, blocks, a norm, a head that may be the embedding again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import mlx.core as mx

from phyla.model.binding import LayerStates, ModelBinding
from phyla.nn.embedding import Embedding, embed_step
from phyla.nn.linear import Linear
from phyla.nn.norm import RMSNorm

if TYPE_CHECKING:
    from phyla.model.facts import ModelFacts
    from phyla.model.step import Route, StepInput


class DecoderBlock(Protocol):
    """One layer of a family: what its paper calls a block."""

    def __call__(self, hidden: mx.array, step: StepInput, states: LayerStates, index: int) -> mx.array:
        """(B*L, E) in and out; reads and appends `states[index]`."""
        ...


class BlockDecoder(ModelBinding):
    """A binding made of a family's blocks; also an `EmbeddingHead` for drafters (`phyla.draft.heads`).

    Args:
        facts: of the model.
        embedding: token embeddings.
        blocks: one per layer of the layout.
        norm: the final norm.
        head: the output projection, or None where it is the embedding's.
    """

    def __init__(
        self,
        facts: ModelFacts,
        embedding: Embedding,
        blocks: Sequence[DecoderBlock],
        norm: RMSNorm,
        head: Linear | None,
    ) -> None:
        super().__init__(facts)
        self._embedding = embedding
        self._blocks = blocks
        self._norm = norm
        self._head = head

    def embed(self, step: StepInput) -> mx.array:
        return embed_step(self._embedding, step)

    def layer(self, index: int, hidden: mx.array, step: StepInput, states: LayerStates) -> mx.array:
        return self._blocks[index](hidden, step, states, index)

    def head(self, hidden: mx.array) -> mx.array:
        return self.logits_of(hidden, "exact")

    def logits_of(self, hidden: mx.array, route: Route) -> mx.array:
        return self.project(self.final_norm(hidden), route)

    def final_norm(self, hidden: mx.array) -> mx.array:
        return self._norm(hidden)

    def embed_ids(self, ids: mx.array) -> mx.array:
        return self._embedding(ids)

    def project(self, hidden: mx.array, route: Route = "exact") -> mx.array:
        return self._embedding.project(hidden, route) if self._head is None else self._head(hidden, route)
