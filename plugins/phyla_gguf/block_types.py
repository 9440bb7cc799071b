"""How GGUF stores numbers, and the same numbers as MLX has them.

A quantised row is blocks of 32 values with one scale, which is an MLX affine group: value = scale * q + bias. So the
blocks are repacked, not requantised, and every value stays what it was.

Source:
    ggml's block_q4_0, block_q4_1 and block_q8_0; MLX packs q little-endian into uint32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

GROUP_SIZE = 32

Planes = Mapping[str, NDArray[np.generic]]
"""`weight` alone, or `weight` (R, C * bits / 32) uint32 with `scales` and `biases` (R, C / 32) float16."""


@dataclass(frozen=True)
class BlockType:
    """One way to store a row."""

    name: str
    num_values: int
    """Values per block."""

    num_bytes: int
    """Bytes per block."""

    unpack: Callable[[NDArray[np.uint8], tuple[int, ...]], Planes]
    """`(bytes, shape) -> planes`."""

    dtype: str
    """mlx name of the unquantised values."""

    bits: int | None = None
    """Bits per quantised value; None is unquantised."""


def _floats(dtype: str) -> Callable[[NDArray[np.uint8], tuple[int, ...]], Planes]:
    return lambda data, shape: {"weight": data.view(dtype).reshape(shape)}


def _q4_0(data: NDArray[np.uint8], shape: tuple[int, ...]) -> Planes:
    blocks = data.reshape(-1, 18)
    scales = _halves(blocks[:, :2])
    return _planes(_nibbles(blocks[:, 2:]), scales, _times(scales, -8), shape)


def _q4_1(data: NDArray[np.uint8], shape: tuple[int, ...]) -> Planes:
    blocks = data.reshape(-1, 20)
    return _planes(_nibbles(blocks[:, 4:]), _halves(blocks[:, :2]), _halves(blocks[:, 2:4]), shape)


def _q8_0(data: NDArray[np.uint8], shape: tuple[int, ...]) -> Planes:
    blocks = data.reshape(-1, 34)
    scales = _halves(blocks[:, :2])
    # Signed to unsigned: flipping the top bit adds 128, which the bias takes away again.
    packed = np.ascontiguousarray(blocks[:, 2:] ^ 0x80)
    return _planes(packed, scales, _times(scales, -128), shape)


def _times(scales: NDArray[np.float16], power_of_two: int) -> NDArray[np.float16]:
    """Exact, but for scales so large that the bias is infinite: such a file's values are nonsense already."""
    with np.errstate(over="ignore", invalid="ignore"):
        return scales * np.float16(power_of_two)


def _halves(data: NDArray[np.uint8]) -> NDArray[np.float16]:
    return np.ascontiguousarray(data).view("<f2").reshape(-1)


def _nibbles(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A block has values 0-15 in its low and 16-31 in its high nibbles; MLX wants neighbours in one byte."""
    values = np.concatenate([data & 0x0F, data >> 4], axis=1)
    packed: NDArray[np.uint8] = values[:, 0::2] | (values[:, 1::2] << 4)
    return packed


def _planes(
    packed: NDArray[np.uint8], scales: NDArray[np.float16], biases: NDArray[np.float16], shape: tuple[int, ...]
) -> Planes:
    rows = shape[:-1]
    return {
        "weight": packed.view("<u4").reshape(*rows, -1),
        "scales": scales.reshape(*rows, -1),
        "biases": biases.reshape(*rows, -1),
    }


BLOCK_TYPES: Mapping[int, BlockType] = {
    0: BlockType("F32", 1, 4, _floats("<f4"), "float32"),
    1: BlockType("F16", 1, 2, _floats("<f2"), "float16"),
    2: BlockType("Q4_0", GROUP_SIZE, 18, _q4_0, "float16", bits=4),
    3: BlockType("Q4_1", GROUP_SIZE, 20, _q4_1, "float16", bits=4),
    8: BlockType("Q8_0", GROUP_SIZE, 34, _q8_0, "float16", bits=8),
}
"""By the type number in the file."""
