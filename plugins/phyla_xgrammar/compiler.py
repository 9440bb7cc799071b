"""The library's compiler over one vocabulary."""

from __future__ import annotations

import numpy as np
import xgrammar
from phyla.draft import Vocabulary
from phyla.errors import ConstraintError
from phyla.request import ConstraintSpec

from phyla_xgrammar.grammar import grammar_of, library_message

NUM_THREADS = 1
"""Of one compilation: more are threads of the library's own, whose priority nobody could lower."""

NO_BYTE = -1


class Compiler:
    """Thread-safe. Takes tenths of a second to make for a large vocabulary: make it once."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._specials = vocabulary.special_spellings
        info = xgrammar.TokenizerInfo(
            list(vocabulary.tokens),
            vocab_size=len(vocabulary.tokens),
            stop_token_ids=sorted(vocabulary.eos_ids),
        )
        self.first_bytes = np.array([one[0] if one else NO_BYTE for one in vocabulary.tokens], dtype=np.int16)
        """(V,) what each token begins with; `NO_BYTE` for those without text."""

        # What is compiled is kept by core, with its bounds.
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=NUM_THREADS, cache_enabled=False)

    def compile(self, spec: ConstraintSpec) -> xgrammar.CompiledGrammar:
        """The compiled grammar.

        Raises:
            ConstraintError: it isn't well formed, or nothing satisfies it.
        """
        grammar = grammar_of(spec, self._specials)
        try:
            if isinstance(grammar, str):
                return self._compiler.compile_structural_tag(grammar)
            return self._compiler.compile_grammar(grammar)
        except RuntimeError as error:
            raise ConstraintError(library_message(error)) from error
