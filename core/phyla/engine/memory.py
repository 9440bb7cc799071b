"""What a request will need, from the layout alone: the fit equation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from phyla.engine.chunks import score_bytes
from phyla.kv.layer_spec import LayerSpec
from phyla.kv.plain import plain_bytes_per_token

WORKSPACE_BYTES_PER_TOKEN = 550_000
"""Activations of a prefill chunk, per token: calibrated by the reference system at 1.1 GB for 2048."""

USABLE_SHARE = 0.75
"""Of the device's memory, where no budget is given."""

MOST_TOKENS = 10**9
"""Where looking for the longest context begins."""

BytesPerToken = Callable[[LayerSpec], float]
"""Stored bytes per token of one layer under the scheme it has."""


@dataclass(frozen=True)
class FitEquation:
    """`total(c) = weights + stored(c) + workspace(c)` for a context of c tokens."""

    layout: Sequence[LayerSpec]
    bytes_per_token: BytesPerToken
    weight_bytes: int
    chunk_tokens: int
    element_bytes: int = 2
    """Of planes that have no dtype of their own."""

    scores_are_materialised: bool = False
    draft: FitEquation | None = None
    """What a drafter's weights and its state beside each row take."""

    def row_bytes(self, num_tokens: int) -> int:
        """What one row stores at that length: sliding layers up to their window, recurrent ones a fixed state."""
        own = int(sum(self._layer_bytes(layer, num_tokens) for layer in self.layout if layer.owns_state))
        return own if self.draft is None else own + self.draft.row_bytes(num_tokens)

    @property
    def growth_bytes(self) -> float:
        """What one more token adds to a long row of the target."""
        growing = (layer for layer in self.layout if layer.owns_state and layer.window is None)
        return sum(self.bytes_per_token(layer) for layer in growing)

    def plain(self) -> FitEquation:
        """The same model with plain storage."""
        return replace(
            self, bytes_per_token=lambda layer: plain_bytes_per_token(layer, f"float{self.element_bytes * 8}")
        )

    def workspace_bytes(self, num_tokens: int) -> int:
        """What a chunk of prefill needs beside the stored state."""
        scores = score_bytes(self.layout, num_tokens, self.chunk_tokens) if self.scores_are_materialised else 0
        return min(self.chunk_tokens, num_tokens) * WORKSPACE_BYTES_PER_TOKEN + scores

    def total_bytes(self, num_tokens: int) -> int:
        weights = self.weight_bytes + (0 if self.draft is None else self.draft.weight_bytes)
        return weights + self.row_bytes(num_tokens) + self.workspace_bytes(num_tokens)

    def max_safe_context(self, usable_bytes: int, context_limit: int) -> int:
        """The longest context that fits, at most `context_limit`; 0 if not even one token does."""
        low, high = 0, context_limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.total_bytes(middle) <= usable_bytes:
                low = middle
            else:
                high = middle - 1
        return low

    def unlimited_context(self, usable_bytes: int) -> int | None:
        """The longest row that fits, whatever the model's limit: what a scheme buys. None where rows don't grow."""
        return self.max_safe_context(usable_bytes, MOST_TOKENS) if self.growth_bytes else None

    def _layer_bytes(self, layer: LayerSpec, num_tokens: int) -> float:
        fixed = sum(
            plane.num_heads * plane.rows * plane.width * (4 if plane.dtype == "float32" else self.element_bytes)
            for plane in layer.planes
            if not plane.per_token
        )
        if all(not plane.per_token for plane in layer.planes):
            return fixed
        stored = num_tokens if layer.window is None else min(num_tokens, layer.window)
        return fixed + stored * self.bytes_per_token(layer)
