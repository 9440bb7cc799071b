"""Phyla's tokenizer as llguidance wants to see one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import llguidance
from phyla.errors import ConstraintError

if TYPE_CHECKING:
    from phyla.tokenizer import Tokenizer

BYTE_EOS = 256


class Vocabulary:
    """Bytes by id, and a way to tokenise what a grammar forces."""

    def __init__(self, tokenizer: Tokenizer, eos_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self.tokens = [_bytes_of(tokenizer, token_id) for token_id in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(tokenizer.special_ids)
        self.bos_token_id = tokenizer.bos_id
        self.eos_token_id = min(eos_ids)

    def __call__(self, text: str | bytes) -> list[int]:
        plain = text.decode(errors="replace") if isinstance(text, bytes) else text
        return self._tokenizer.encode(plain, parse_special=False)


class ByteVocabulary:
    """One token per byte and an end of sequence: the smallest vocabulary that can spell everything."""

    def __init__(self) -> None:
        self.tokens = [*(bytes([byte]) for byte in range(256)), b"<eos>"]
        self.special_token_ids = [BYTE_EOS]
        self.bos_token_id = None
        self.eos_token_id = BYTE_EOS

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


def library_tokenizer(tokenizer: Tokenizer, eos_ids: frozenset[int]) -> llguidance.LLTokenizer:
    """The library's form of this tokenizer. Takes tenths of a second for a large vocabulary: make it once."""
    known = frozenset(one for one in eos_ids if one < tokenizer.vocab_size)
    if not known:
        raise ConstraintError("this model has no end-of-sequence token, so no answer of it could ever be complete.")
    # The tokenizer gets ready for this at its first call: not when the engine asks what is forced.
    tokenizer.encode("{", parse_special=False)
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(Vocabulary(tokenizer, known)), eos_token=sorted(known))


def byte_tokenizer() -> llguidance.LLTokenizer:
    """The library's form of the byte vocabulary."""
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(ByteVocabulary()), eos_token=[BYTE_EOS])


def _bytes_of(tokenizer: Tokenizer, token_id: int) -> bytes:
    if token_id in tokenizer.special_ids:
        return tokenizer.piece(token_id).encode()
    return tokenizer.token_bytes(token_id)
