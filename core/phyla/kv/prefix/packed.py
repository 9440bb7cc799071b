"""Token ids as bytes, so that long prefixes compare at the speed of memcmp."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

ID_BYTES = 4


def packed(token_ids: Sequence[int]) -> bytes:
    """Four bytes per id, in this machine's byte order; never leaves the process."""
    ids = array("I", token_ids)
    assert ids.itemsize == ID_BYTES, "no 32-bit unsigned array type here"
    return ids.tobytes()


def num_tokens(key: bytes) -> int:
    return len(key) // ID_BYTES


def first_tokens(key: bytes, count: int) -> bytes:
    return key[: count * ID_BYTES]


def num_common(one: bytes, other: bytes) -> int:
    """Tokens at the front that both keys share."""
    low, high = 0, min(len(one), len(other)) // ID_BYTES
    if one[: high * ID_BYTES] == other[: high * ID_BYTES]:
        return high
    # Invariant: the first `low` tokens agree, the first `high` don't.
    while high - low > 1:
        middle = (low + high) // 2
        if one[low * ID_BYTES : middle * ID_BYTES] == other[low * ID_BYTES : middle * ID_BYTES]:
            low = middle
        else:
            high = middle
    return low
