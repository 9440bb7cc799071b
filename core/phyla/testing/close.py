"""Comparing arrays with a bound that says where it comes from."""

from __future__ import annotations

import mlx.core as mx
import numpy as np


def assert_close(got: mx.array | np.ndarray, want: mx.array | np.ndarray, *, atol: float, why: str) -> None:
    """Fail with the largest difference and its place if any number differs by more than `atol`, or isn't finite.

    Args:
        atol: absolute bound.
        why: where the difference comes from; part of the message.
    """
    left, right = _host(got), _host(want)
    assert left.shape == right.shape, f"shapes differ: {left.shape} and {right.shape}"
    differences = np.abs(left - right)
    worst = np.unravel_index(int(np.argmax(differences)), differences.shape) if differences.size else ()
    largest = float(differences[worst]) if differences.size else 0.0
    place = tuple(int(axis) for axis in worst)
    assert largest <= atol, f"differs by {largest:.3g} at {place}, more than {atol:.3g} ({why})"


def _host(array: mx.array | np.ndarray) -> np.ndarray:
    if isinstance(array, mx.array):
        array = np.array(array.astype(mx.float32))
    return np.asarray(array, dtype=np.float64)
