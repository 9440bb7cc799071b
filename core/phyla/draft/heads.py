"""What a drafter may borrow from its target: protocols that a binding offers by name in its facts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import mlx.core as mx

EMBEDDING_HEAD = "embedding"
"""Name in `ModelFacts.heads` of bindings that are an `EmbeddingHead`."""


class EmbeddingHead(Protocol):
    """The target's input embedding and output projection, for drafters that have none of their own."""

    def embed_ids(self, ids: mx.array) -> mx.array:
        """Unscaled input embeddings: (..., ) int32 to (..., E)."""
        ...

    def project(self, hidden: mx.array) -> mx.array:
        """Output projection without the target's final norm: (..., E) to (..., V), softcap included."""
        ...
