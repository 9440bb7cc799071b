"""How the weights of a model are to be held; the part of the plan that a family sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from phyla.backend.device import BackendFacts
    from phyla.backend.strategy import Strategies

WeightForm = Literal["stored", "dense"]
Progress = Callable[[str, int, int], None]
"""`(what, done, total)` in bytes; called on the engine thread."""


def no_progress(what: str, done: int, total: int) -> None:
    """Reports nothing."""


@dataclass(frozen=True)
class LoadOptions:
    """Decided by selection before anything is loaded."""

    backend: BackendFacts
    dtype: str
    """Activation dtype by mlx name: `float32`, `bfloat16`, `float16`."""

    weights: WeightForm = "stored"
    """`dense` dequantises once at load."""

    compiled_activations: bool = True
    strategies: Strategies | None = None
    """What chooses the products of quantised weights on the fast route; None multiplies them whole."""

    progress: Progress = field(default=no_progress, compare=False)
