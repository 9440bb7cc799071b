"""What one layer keeps between steps, as facts: no arrays, no mlx."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phyla.kv.state import LayerState

FULL = "full"
SLIDING = "sliding"
RECURRENT = "recurrent"
LATENT = "latent"
"""Kinds that core brings states for. The set is open: a family may name another and bring its own."""


@dataclass(frozen=True)
class Plane:
    """One array a layer stores per token (or per row, for recurrent state).

    A full layer has planes `keys` and `values`; a recurrent one has, say, `conv` and `state`.
    """

    name: str
    num_heads: int
    width: int
    """Numbers per head: the head size for keys and values."""

    per_token: bool = True
    """False for state whose size doesn't grow with the tokens; then `rows` counts its second-to-last axis."""

    rows: int = 1
    dtype: str | None = None
    """Name of a fixed dtype (`float32` for recurrent state), or None for the cache's own."""


@dataclass(frozen=True)
class LayerSpec:
    """One layer of a layout."""

    index: int
    kind: str
    planes: tuple[Plane, ...]
    scale: float = 1.0
    """Factor on the attention scores."""

    softcap: float | None = None
    """Scores become `softcap * tanh(scores / softcap)`; None is off."""

    num_sinks: int = 0
    """Learned sink logits per query head."""

    window: int | None = None
    """Tokens a sliding layer sees, itself included."""

    num_query_heads: int = 0
    source: int | None = None
    """Index of the layer whose storage this one reads; such a layer owns none."""

    plain: Callable[[LayerSpec], LayerState] | None = field(default=None, compare=False)
    """Makes an empty plain state. None: core's own for this kind."""

    @property
    def owns_state(self) -> bool:
        return self.source is None

    def plane(self, name: str) -> Plane:
        """The plane called `name`; KeyError if the layer has none."""
        for plane in self.planes:
            if plane.name == name:
                return plane
        raise KeyError(name)


Layout = tuple[LayerSpec, ...]
