"""What has to be done to a step's heads before they are stored and asked, for storage that does it itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import mlx.core as mx


@dataclass(frozen=True, eq=False)
class HeadNorms:
    """Root-mean-square norms of each head of queries and keys, before they are rotated."""

    queries: mx.array
    """(D,)."""

    keys: mx.array
    eps: float


@dataclass(frozen=True, eq=False)
class Rotation:
    """Numbers i and i + num_dims / 2 of each head turn by `position / periods[i]`; the rest passes."""

    num_dims: int
    periods: mx.array
    """(num_dims / 2,) float32, the scale of positions included."""

    norms: HeadNorms | None = None
