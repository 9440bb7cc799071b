"""Codes of a few bits as bytes: a little-endian bitstream per row, code i at bits [i * b, (i + 1) * b)."""

from __future__ import annotations

import mlx.core as mx

CODES_PER_WORD = 8
"""Eight codes of b bits fill b whole bytes, whatever b is."""

BITS_PER_BYTE = 8
BITS_OF_UINT32 = 32


def packed(codes: mx.array, bits: int) -> mx.array:
    """(..., D) codes below 2^bits to (..., D * bits / 8) uint8; D is a multiple of 8."""
    if bits == BITS_PER_BYTE:
        return codes.astype(mx.uint8)
    *leading, width = codes.shape
    grouped = codes.astype(mx.uint64).reshape(*leading, width // CODES_PER_WORD, CODES_PER_WORD)
    words = mx.sum(grouped << _shifts(bits, CODES_PER_WORD), axis=-1, keepdims=True)
    in_bytes: mx.array = (words >> _shifts(BITS_PER_BYTE, bits)) & 0xFF
    return in_bytes.astype(mx.uint8).reshape(*leading, width * bits // BITS_PER_BYTE)


def unpacked(stored: mx.array, bits: int, together: int = 1) -> mx.array:
    """The codes that `packed` was given.

    Args:
        stored: (..., D * bits / 8) uint8.
        bits: of each code.
        together: codes per number that comes out, the first in its lowest bits: 1, 2, 4 or 8.

    Returns:
        (..., D / together) uint8, or uint16 where a number has more than 8 bits.
    """
    width = bits * together
    if width == BITS_PER_BYTE:
        return stored
    *leading, num_bytes = stored.shape
    grouped = stored.reshape(*leading, num_bytes // bits, bits)
    # Byte by byte, not as a sum over them: what is elementwise, a compiler makes one kernel of.
    holds = mx.uint32 if bits * CODES_PER_WORD <= BITS_OF_UINT32 else mx.uint64
    words = grouped[..., :1].astype(holds)
    for place in range(1, bits):
        words = words | (grouped[..., place : place + 1].astype(holds) << (BITS_PER_BYTE * place))
    codes: mx.array = (words >> _shifts(width, CODES_PER_WORD // together).astype(holds)) & (2**width - 1)
    small = codes.astype(mx.uint8 if width < BITS_PER_BYTE else mx.uint16)
    return small.reshape(*leading, num_bytes // bits * CODES_PER_WORD // together)


def _shifts(step: int, count: int) -> mx.array:
    return mx.arange(0, step * count, step).astype(mx.uint64)
