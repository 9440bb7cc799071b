"""Phyla's tokenizer as llguidance wants to see one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import llguidance
from phyla.draft import Vocabulary as PlainVocabulary
from phyla.errors import ConstraintError

if TYPE_CHECKING:
    from phyla.tokenizer import Tokenizer


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


class TrialVocabulary:
    """The same from plain data, in a process without the tokenizer: nobody asks there how forced text is spelt."""

    def __init__(self, vocabulary: PlainVocabulary) -> None:
        spellings = {token_id: spelling.encode() for spelling, token_id in vocabulary.special_spellings.items()}
        self.tokens = [spellings.get(token_id, text) for token_id, text in enumerate(vocabulary.tokens)]
        self.special_token_ids = sorted({*spellings, *vocabulary.eos_ids})
        self.bos_token_id = None
        self.eos_token_id = min(vocabulary.eos_ids)
        self._ids = {text: token_id for token_id, text in enumerate(vocabulary.tokens) if len(text) == 1}

    def __call__(self, text: str | bytes) -> list[int]:
        spelt = text.encode() if isinstance(text, str) else text
        return [self._ids[one] for byte in spelt if (one := bytes([byte])) in self._ids]


def library_tokenizer(tokenizer: Tokenizer, eos_ids: frozenset[int]) -> llguidance.LLTokenizer:
    """The library's form of this tokenizer. Takes tenths of a second for a large vocabulary: make it once."""
    known = _checked(frozenset(one for one in eos_ids if one < tokenizer.vocab_size))
    # The tokenizer gets ready for this at its first call: not when the engine asks what is forced.
    tokenizer.encode("{", parse_special=False)
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(Vocabulary(tokenizer, known)), eos_token=sorted(known))


def trial_tokenizer(vocabulary: PlainVocabulary) -> llguidance.LLTokenizer:
    """The library's form of a vocabulary that came through a pipe."""
    known = sorted(_checked(vocabulary.eos_ids))
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(TrialVocabulary(vocabulary)), eos_token=known)


def _checked(eos_ids: frozenset[int]) -> frozenset[int]:
    if not eos_ids:
        raise ConstraintError("this model has no end-of-sequence token, so no answer of it could ever be complete.")
    return eos_ids


def _bytes_of(tokenizer: Tokenizer, token_id: int) -> bytes:
    if token_id in tokenizer.special_ids:
        return tokenizer.piece(token_id).encode()
    return tokenizer.token_bytes(token_id)
