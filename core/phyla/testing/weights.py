"""Seeded random weights in which every part of a model shows."""

from __future__ import annotations

import math
from collections.abc import Mapping

import mlx.core as mx
import numpy as np

WEIGHT_SPREAD = math.hypot(0.02, 0.05)
NORM_SPREAD = 0.05
LOG_DECAYS = (-4.0, 0.5)
"""Of the logarithms of recurrent decay rates: memories of one position to about a hundred."""


def random_tensors(shapes: Mapping[str, tuple[int, ...]], seed: int = 0) -> dict[str, mx.array]:
    """float32 tensors by name: the same for the same seed, name and shape, whatever else is in `shapes`.

    Norm weights are spread around one and biases around zero: at their usual initial values a model that forgets to
    apply them would pass every comparison.
    """
    return {name: mx.array(_tensor(name, shape, seed)) for name, shape in shapes.items()}


def _tensor(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    random = np.random.default_rng([seed, *name.encode()])
    if name.endswith("A_log"):
        return random.uniform(*LOG_DECAYS, shape).astype(np.float32)
    spread = random.standard_normal(shape, dtype=np.float32)
    is_norm = len(shape) == 1 and name.endswith("norm.weight")
    values = 1 + NORM_SPREAD * spread if is_norm else WEIGHT_SPREAD * spread
    return values.astype(np.float32)
