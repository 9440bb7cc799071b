"""The protocols model code speaks to a layer's storage. Core never calls these.

Each object stands for a whole group: arrays have B rows, padded ones included, and `num_real` says how many of the L
positions of each row are real. Padded positions leave no trace in the storage, and what comes out there is arbitrary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import mlx.core as mx

    from phyla.kv.mask import Mask
    from phyla.kv.rotation import Rotation

NumReal = Sequence[int]
"""Real positions per row of this step; a dead seat has 0."""


class KeyValueReader(Protocol):
    """A read-only look at another layer's keys and values (shared layers, borrowing drafters)."""

    @property
    def includes_step(self) -> bool:
        """Whether this step's tokens are already stored."""
        ...

    def attend(self, queries: mx.array, mask: Mask, num_real: NumReal, sinks: mx.array | None = None) -> mx.array:
        """As `KeyValueCache.attend`, with the scale, softcap and sinks of the reading layer."""
        ...


@runtime_checkable
class Lender(Protocol):
    """Storage that other layers and drafters may look at."""

    def reader(
        self, scale: float | None = None, softcap: float | None = None, includes_step: bool = True
    ) -> KeyValueReader:
        """A read-only `attend` on this storage.

        Args:
            scale: of the reading layer; None takes this layer's.
            softcap: of the reading layer; None takes this layer's.
            includes_step: true for a layer that runs after this one in the same step and whose queries sit on the
                step's own columns; false for a drafter whose queries come after everything stored.
        """
        ...


class KeyValueCache(Lender, Protocol):
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


@runtime_checkable
class RotatesAndStores(Protocol):
    """Storage that may take a step's projection whole, where a kernel rotates and stores in one launch."""

    @property
    def rotates(self) -> bool:
        """Whether this step's projection is to be given whole."""
        ...

    def rotate_and_store(self, projected: mx.array, rotation: Rotation, offsets: mx.array) -> mx.array:
        """Store this step's keys and values, rotated.

        Args:
            projected: (B*L, (H + 2K) * D): queries, keys and values of each token.
            rotation: of queries and keys.
            offsets: (B,) or (), int32: the position of each row's first token.

        Returns:
            (B, H, L, D) queries, rotated.
        """
        ...


State = Mapping[str, "mx.array"]
"""Named arrays of a recurrence, leading axis B; empty at the start of a row. In a stacked group, beside rows that have
begun, a row that hasn't is zeros, and must come out as if it had been empty."""

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


LATENT_PLANE = "latent"
"""What scores and output are taken from: one head, `kv_lora_rank` wide."""

ROPE_PLANE = "rope"
"""The rotated part of the keys: one head."""

INDEX_PLANE = "index"
"""Keys of the indexer, where a layer selects; one head."""


class LatentCache(Protocol):
    """Compressed keys and values (multi-head latent attention)."""

    def append(self, planes: Mapping[str, mx.array], num_real: NumReal) -> None:
        """Store this step's planes, each (B, 1, L, width), by the names of the layer's spec."""
        ...

    def select(
        self, queries: mx.array, weights: mx.array, num_selected: int, mask: Mask, num_real: NumReal
    ) -> mx.array:
        """The stored positions that matter most to each query, this step included.

        Args:
            queries: (B, heads, L, width) of the indexer, rotated.
            weights: (B, L, heads), every scale factor included.
            num_selected: how many to choose.
            mask: what each query may see at all.
            num_real: real positions per row.

        Returns:
            (B, L, num_selected) column indices by falling score, ties to the lowest; the first is repeated where
            fewer are stored.

        Source:
            DeepSeek-V3.2, section 2.1, eq. 1: the score is `sum_h w_h * relu(q_h . k)`, in float32.
        """
        ...

    def attend(self, queries: mx.array, mask: Mask, num_real: NumReal, selected: mx.array | None = None) -> mx.array:
        """Attend in the latent space: (B, H, L, latent + rope) in, (B, H, L, latent) out."""
        ...
