"""Which stored positions each query may see, as a value.

A scheme turns it into what its kernel wants: nothing, the word "causal", a boolean array, or a walk over blocks.
Rows of different lengths need no mask of their own: the group knows how many tokens each row has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import mlx.core as mx


@dataclass(frozen=True)
class Causal:
    """Each query sees itself and everything stored before it."""


@dataclass(frozen=True)
class Windowed:
    """Causal, and no further back than `window` positions, the query's own included."""

    window: int


@dataclass(frozen=True)
class Bidirectional:
    """Every query of the step sees everything stored, this step included."""


@dataclass(frozen=True)
class BidirectionalSpans:
    """As `within`, and inside each [start, end) span of absolute positions everything sees everything."""

    spans: tuple[tuple[int, int], ...]
    within: Causal | Windowed = Causal()


@dataclass(frozen=True)
class Explicit:
    """A boolean array, true where a query may look: broadcastable to (B, H, L, S)."""

    allowed: mx.array


@dataclass(frozen=True)
class RowLengths:
    """As `within`, but row b may see only its first `lengths[b]` stored positions."""

    lengths: tuple[int, ...]
    within: Causal | Windowed | Bidirectional = Causal()


Mask = Causal | Windowed | Bidirectional | BidirectionalSpans | Explicit | RowLengths
