"""Comparing arrays: bit for bit, or within a bound that says why."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from phyla.kv.state import LayerState, StateArrays


def same_bits(got: mx.array, want: mx.array) -> bool:
    """Equal dtype, shape and bits; a NaN equals the same NaN."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return False
    return as_bytes(got) == as_bytes(want)


def as_bytes(array: mx.array) -> bytes:
    """The numbers in row-major order, as they are stored."""
    if array.dtype == mx.bfloat16:
        array = mx.contiguous(array).view(mx.uint16)
    return np.ascontiguousarray(np.array(array)).tobytes()


def same_arrays(got: StateArrays, want: StateArrays) -> bool:
    """Equal facts and names, equal bits in each array."""
    if dict(got.facts) != dict(want.facts) or set(got.arrays) != set(want.arrays):
        return False
    return all(same_bits(array, want.arrays[name]) for name, array in got.arrays.items())


def same_state(got: LayerState, want: LayerState) -> bool:
    """Two states that no later step can tell apart."""
    return got.num_tokens == want.num_tokens and same_arrays(got.arrays(), want.arrays())


def assert_close(got: mx.array, want: mx.array, *, atol: float, why: str) -> None:
    """Every number within `atol`.

    Args:
        got: what the code under test computed.
        want: the reference, in any float dtype.
        atol: largest absolute difference allowed.
        why: where the difference comes from; part of the message.
    """
    assert got.shape == want.shape, f"shapes differ: {got.shape} and {want.shape}"
    if got.size == 0:
        return
    worst = float(mx.abs(got.astype(mx.float32) - want.astype(mx.float32)).max())
    assert worst <= atol, f"largest difference {worst:.3g} is over {atol:.3g} ({why})"
