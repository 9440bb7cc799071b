"""Compiling with the model's own vocabulary."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from phyla.draft import CompiledConstraint, Constraint, Vocabulary
from phyla.request import ConstraintSpec

if TYPE_CHECKING:
    import xgrammar
    from phyla.tokenizer import Tokenizer

    from phyla_xgrammar.compiler import Compiler


class XgrammarEngine:
    """Keeps the library's compiler of each tokenizer. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._compilers: dict[tuple[str, frozenset[int]], Compiler] = {}

    def compile(self, spec: ConstraintSpec, tokenizer: Tokenizer, eos_ids: frozenset[int]) -> CompiledConstraint:
        """The compiled constraint.

        Raises:
            ConstraintError: it can't be compiled; says why.
        """
        compiler = self._compiler(tokenizer, eos_ids)
        return Compiled(compiler.compile(spec), tokenizer, eos_ids, compiler.first_bytes)

    def _compiler(self, tokenizer: Tokenizer, eos_ids: frozenset[int]) -> Compiler:
        from phyla_xgrammar.compiler import Compiler

        key = (tokenizer.fingerprint, eos_ids)
        with self._lock:
            found = self._compilers.get(key)
            if found is None:
                found = self._compilers[key] = Compiler(Vocabulary.of(tokenizer, eos_ids))
                # The tokenizer gets ready for this at its first call: not when the engine asks what is forced.
                tokenizer.encode("{", parse_special=False)
            return found


class Compiled:
    """A compiled grammar; each row has a matcher of its own over it."""

    def __init__(
        self,
        compiled: xgrammar.CompiledGrammar,
        tokenizer: Tokenizer,
        eos_ids: frozenset[int],
        first_bytes: npt.NDArray[np.int16],
    ) -> None:
        self._compiled = compiled
        self._first_bytes = first_bytes
        self._tokenizer = tokenizer
        words = np.zeros((tokenizer.vocab_size + 31) // 32, dtype=np.uint32)
        for token_id in eos_ids:
            if token_id < tokenizer.vocab_size:
                words[token_id // 32] |= np.uint32(1 << (token_id % 32))
        self._eos = words.view(np.int32)

    @property
    def num_bytes(self) -> int:
        return int(self._compiled.memory_size_bytes)

    def open(self) -> Constraint:
        import xgrammar

        from phyla_xgrammar.matcher import Matcher

        return Matcher(xgrammar.GrammarMatcher(self._compiled), self._tokenizer, self._eos, self._first_bytes)
