"""The protocols model code speaks to a layer's storage. Core never calls these.

Each object stands for a whole group: arrays have B rows, padded ones included, and `num_real` says how many of the L
positions of each row are real. Padded positions leave no trace in the storage, and what comes out there is arbitrary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import mlx.core as mx

    from phyla.kv.mask import Mask

NumReal = Sequence[int]
"""Real positions per row of this step; a dead seat has 0."""


class KeyValueReader(Protocol):
    """A read-only look at another layer's keys and values (shared layers, borrowing drafters)."""

    @property
    def includes_step(self) -> bool:
        """Whether this step's tokens are already stored."""
        ...

    def attend(self, queries: mx.array, mask: Mask, num_real: NumReal) -> mx.array:
        """As `KeyValueCache.attend`, with the scale, softcap and sinks of the reading layer."""
        ...


class KeyValueCache(Protocol):
    """Keys and values of a full or sliding attention layer."""

    def append(self, keys: mx.array, values: mx.array, num_real: NumReal) -> None:
        """Store this step's tokens.

        Args:
            keys: (B, K, L, D), rotated.
            values: (B, K, L, Dv).
            num_real: real positions per row.
        """
        ...

    def attend(self, queries: mx.array, mask: Mask, num_real: NumReal, sinks: mx.array | None = None) -> mx.array:
        """Attend over everything stored so far, this step included.

        Args:
            queries: (B, H, L, D), rotated, not yet scaled; the cache knows its layer's scale and softcap.
            mask: which of the stored positions each of the L may see.
            num_real: real positions per row.
            sinks: (H,) learned sink logits, where the layer has them.

        Returns:
            (B, H, L, Dv) in the dtype of `queries`.
        """
        ...

    def reader(self, scale: float | None = None, softcap: float | None = None) -> KeyValueReader:
        """A read-only `attend` on this storage; scale and softcap default to this layer's."""
        ...


State = Mapping[str, "mx.array"]
"""Named arrays of a recurrence, leading axis B; empty at the start of a row."""

Recurrence = Callable[[Mapping[str, "mx.array"], State, "NumReal"], "tuple[mx.array, State]"]
"""`(inputs, state, num_real) -> (outputs, new state)`: pure, so that a kept prefix can be replayed.

Inputs are position-local, (B, L, ...). Padded positions must not move the state.
"""


class RecurrentCache(Protocol):
    """State of a layer that folds its past into arrays of fixed size."""

    def advance(self, inputs: Mapping[str, mx.array], recurrence: Recurrence, num_real: NumReal) -> mx.array:
        """Run the recurrence over this step's tokens and hold on to where it ends.

        Args:
            inputs: position-local arrays, (B, L, ...), held on to while a window is open, for replay.
            recurrence: the layer's own formula.
            num_real: real positions per row.

        Returns:
            The recurrence's outputs, (B, L, ...).
        """
        ...


class LatentCache(Protocol):
    """Compressed keys and values (multi-head latent attention)."""

    def append(self, planes: Mapping[str, mx.array], num_real: NumReal) -> None:
        """Store this step's planes, each (B, heads, L, width), by the names of the layer's spec."""
        ...

    def select(self, queries: mx.array, weights: mx.array, num_selected: int, num_real: NumReal) -> mx.array:
        """Score the stored index keys and return (B, L, num_selected) positions, ties to the lowest."""
        ...

    def attend(self, queries: mx.array, mask: Mask, num_real: NumReal, selected: mx.array | None = None) -> mx.array:
        """Attend in the latent space: (B, H, L, latent + rope) in, (B, H, L, latent) out."""
        ...
