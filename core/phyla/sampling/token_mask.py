"""Which ids may come next, as packed host words, and how they reach the logits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import mlx.core as mx
import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.int32]
"""(ceil(V / 32),): bit i of word w is set where id 32 * w + i may come next."""


def all_allowed(vocab_size: int) -> Words:
    """Words that allow every id below `vocab_size`, and none above."""
    words = np.full((vocab_size + 31) // 32, -1, dtype=np.int32)
    spare = len(words) * 32 - vocab_size
    if spare:
        words[-1] = np.int32((1 << (32 - spare)) - 1)
    return words


def allowed_only(ids: Iterable[int], vocab_size: int) -> Words:
    """Words that allow nothing but `ids`."""
    bits = np.zeros((vocab_size + 31) // 32, dtype=np.uint32)
    for token_id in ids:
        bits[token_id // 32] |= np.uint32(1 << (token_id % 32))
    return bits.view(np.int32)


def without(words: Words, ids: Iterable[int]) -> Words:
    """A copy of `words` that also forbids `ids`; those past its end are forbidden already."""
    bits = words.view(np.uint32).copy()
    for token_id in ids:
        if token_id < len(bits) * 32:
            bits[token_id // 32] &= np.uint32(~(1 << (token_id % 32)) & 0xFFFFFFFF)
    return bits.view(np.int32)


def allows(words: Words, token_id: int) -> bool:
    """Whether `token_id` may come next."""
    word, bit = divmod(token_id, 32)
    return 0 <= word < len(words) and bool((int(words[word]) >> bit) & 1)


def allows_nothing(words: Words) -> bool:
    """Whether no id is left."""
    return not words.any()


def masked(logits: mx.array, allowed: mx.array) -> mx.array:
    """(M, V) logits with forbidden ids at minus infinity.

    Args:
        logits: (M, V).
        allowed: booleans that broadcast to them, as `unpacked` gives them.
    """
    return mx.where(allowed, logits, mx.array(-math.inf, logits.dtype))


def unpacked(rows: Sequence[Words | None], vocab_size: int) -> mx.array:
    """(M, V) booleans on the device: what each row's words allow; a row without words allows everything.

    Ids past the end of a row's words (a padded head) are forbidden there.
    """
    num_words = (vocab_size + 31) // 32
    packed = np.zeros((len(rows), num_words), dtype=np.int32)
    for index, words in enumerate(rows):
        if words is None:
            packed[index] = -1
        else:
            packed[index, : min(len(words), num_words)] = words[:num_words]
    bits = mx.right_shift(mx.array(packed)[:, :, None], mx.arange(32, dtype=mx.int32)) & 1
    return bits.reshape(len(rows), num_words * 32)[:, :vocab_size].astype(mx.bool_)
