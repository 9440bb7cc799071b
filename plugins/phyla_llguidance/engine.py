"""Compiling with the model's own vocabulary."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from phyla.draft import CompiledConstraint
from phyla.request import ConstraintSpec

if TYPE_CHECKING:
    import llguidance
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
        from phyla_llguidance.compiled import compiled

        specials = {
            spelling: token_id
            for spelling, token_id in tokenizer.special_spellings.items()
            if token_id in tokenizer.special_ids
        }
        library = self._tokenizer(tokenizer, eos_ids)
        return compiled(spec, specials, library, tokenizer.vocab_size, eos_ids)

    def _tokenizer(self, tokenizer: Tokenizer, eos_ids: frozenset[int]) -> llguidance.LLTokenizer:
        from phyla_llguidance.vocabulary import library_tokenizer

        key = (tokenizer.fingerprint, eos_ids)
        with self._lock:
            found = self._tokenizers.get(key)
            if found is None:
                found = self._tokenizers[key] = library_tokenizer(tokenizer, eos_ids)
            return found
