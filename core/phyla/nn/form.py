"""How a quantised matrix is packed. No mlx."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

QuantMode = Literal["affine", "mxfp4", "mxfp8", "nvfp4"]


@dataclass(frozen=True)
class QuantForm:
    """How the numbers of a quantised matrix are packed."""

    group_size: int
    """Inputs that share one scale."""

    bits: int
    mode: QuantMode = "affine"

    @property
    def has_biases(self) -> bool:
        return self.mode == "affine"
