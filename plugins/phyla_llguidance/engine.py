"""Compiling with the model's own vocabulary."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import llguidance
import numpy as np
from phyla.draft import CompiledConstraint, Constraint
from phyla.request import ConstraintSpec

from phyla_llguidance.grammar import grammar_of
from phyla_llguidance.limits import limits
from phyla_llguidance.matcher import Matcher, checked
from phyla_llguidance.vocabulary import library_tokenizer

if TYPE_CHECKING:
    from phyla.tokenizer import Tokenizer


class LlguidanceEngine:
    """Keeps the library's form of each tokenizer. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tokenizers: dict[tuple[str, frozenset[int]], llguidance.LLTokenizer] = {}

    def compile(self, spec: ConstraintSpec, tokenizer: Tokenizer, eos_ids: frozenset[int]) -> CompiledConstraint:
        """The compiled constraint, its first mask filled.

        Raises:
            ConstraintError: it can't be compiled; says why.
        """
        specials = {
            spelling: token_id
            for spelling, token_id in tokenizer.special_spellings.items()
            if token_id in tokenizer.special_ids
        }
        grammar = grammar_of(spec, specials)
        library = self._tokenizer(tokenizer, eos_ids)
        matcher = checked(llguidance.LLMatcher(library, grammar, log_level=0, limits=limits()))
        matcher.compute_bitmask()
        return Compiled(checked(matcher), tokenizer.vocab_size, eos_ids)

    def _tokenizer(self, tokenizer: Tokenizer, eos_ids: frozenset[int]) -> llguidance.LLTokenizer:
        key = (tokenizer.fingerprint, eos_ids)
        with self._lock:
            found = self._tokenizers.get(key)
            if found is None:
                found = self._tokenizers[key] = library_tokenizer(tokenizer, eos_ids)
            return found


class Compiled:
    """A matcher at the start, copied for each row: rows share nothing."""

    def __init__(self, matcher: llguidance.LLMatcher, vocab_size: int, eos_ids: frozenset[int]) -> None:
        self._matcher = matcher
        self._eos = np.zeros((vocab_size + 31) // 32, dtype=np.uint32)
        for token_id in eos_ids:
            if token_id < vocab_size:
                self._eos[token_id // 32] |= np.uint32(1 << (token_id % 32))

    def open(self) -> Constraint:
        return Matcher(self._matcher.deep_copy(), self._eos.view(np.int32))
