"""Compiling with the model's own vocabulary."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
from phyla.draft import CompiledConstraint, Constraint
from phyla.errors import ConstraintError
from phyla.request import ConstraintSpec

if TYPE_CHECKING:
    import xgrammar
    from phyla.tokenizer import Tokenizer

NUM_THREADS = 2
"""Of one compilation; the device's own work goes on meanwhile."""


class XgrammarEngine:
    """Keeps the library's compiler of each tokenizer. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._compilers: dict[tuple[str, frozenset[int]], xgrammar.GrammarCompiler] = {}

    def compile(self, spec: ConstraintSpec, tokenizer: Tokenizer, eos_ids: frozenset[int]) -> CompiledConstraint:
        """The compiled constraint.

        Raises:
            ConstraintError: it can't be compiled; says why.
        """
        from phyla_xgrammar.grammar import grammar_of, library_message

        specials = {
            spelling: token_id
            for spelling, token_id in tokenizer.special_spellings.items()
            if token_id in tokenizer.special_ids
        }
        grammar = grammar_of(spec, specials)
        compiler = self._compiler(tokenizer, eos_ids)
        try:
            if isinstance(grammar, str):
                compiled = compiler.compile_structural_tag(grammar)
            else:
                compiled = compiler.compile_grammar(grammar)
        except RuntimeError as error:
            raise ConstraintError(library_message(error)) from error
        return Compiled(compiled, tokenizer, eos_ids)

    def _compiler(self, tokenizer: Tokenizer, eos_ids: frozenset[int]) -> xgrammar.GrammarCompiler:
        import xgrammar

        key = (tokenizer.fingerprint, eos_ids)
        with self._lock:
            found = self._compilers.get(key)
            if found is None:
                vocabulary = [tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)]
                info = xgrammar.TokenizerInfo(
                    vocabulary, vocab_size=len(vocabulary), stop_token_ids=sorted(_known(eos_ids, tokenizer))
                )
                # What is compiled is kept by core, with its bounds.
                found = xgrammar.GrammarCompiler(info, max_threads=NUM_THREADS, cache_enabled=False)
                self._compilers[key] = found
            return found


class Compiled:
    """A compiled grammar; each row has a matcher of its own over it."""

    def __init__(self, compiled: xgrammar.CompiledGrammar, tokenizer: Tokenizer, eos_ids: frozenset[int]) -> None:
        self._compiled = compiled
        self._tokenizer = tokenizer
        words = np.zeros((tokenizer.vocab_size + 31) // 32, dtype=np.uint32)
        for token_id in _known(eos_ids, tokenizer):
            words[token_id // 32] |= np.uint32(1 << (token_id % 32))
        self._eos = words.view(np.int32)

    def open(self) -> Constraint:
        import xgrammar

        from phyla_xgrammar.matcher import Matcher

        return Matcher(xgrammar.GrammarMatcher(self._compiled), self._tokenizer, self._eos)


def _known(eos_ids: frozenset[int], tokenizer: Tokenizer) -> frozenset[int]:
    return frozenset(one for one in eos_ids if one < tokenizer.vocab_size)
