"""A grammar over one tokenizer, ready to be opened for a row."""

from __future__ import annotations

from collections.abc import Mapping

import llguidance
import numpy as np
from phyla.draft import Constraint
from phyla.request import ConstraintSpec

from phyla_llguidance.grammar import grammar_of
from phyla_llguidance.limits import limits
from phyla_llguidance.matcher import Matcher, checked

BYTES_OF_ONE = 1 << 20
BYTES_PER_SOURCE_BYTE = 32
"""The library doesn't say what it keeps. Measured: 1.1 MB of a schema of 3 kB, 8.8 MB of one of 289 kB."""


def compiled(
    spec: ConstraintSpec,
    specials: Mapping[str, int],
    library: llguidance.LLTokenizer,
    vocab_size: int,
    eos_ids: frozenset[int],
) -> Compiled:
    """Compile and fill the first mask.

    Raises:
        ConstraintError: it can't be compiled; says why.
    """
    matcher = checked(llguidance.LLMatcher(library, grammar_of(spec, specials), log_level=0, limits=limits()))
    matcher.compute_bitmask()
    num_bytes = BYTES_OF_ONE + BYTES_PER_SOURCE_BYTE * len(spec.source)
    return Compiled(checked(matcher), vocab_size, eos_ids, num_bytes)


class Compiled:
    """A matcher at the start, copied for each row: rows share nothing."""

    def __init__(self, matcher: llguidance.LLMatcher, vocab_size: int, eos_ids: frozenset[int], num_bytes: int) -> None:
        self._matcher = matcher
        self.num_bytes = num_bytes
        self._eos = np.zeros((vocab_size + 31) // 32, dtype=np.uint32)
        for token_id in eos_ids:
            if token_id < vocab_size:
                self._eos[token_id // 32] |= np.uint32(1 << (token_id % 32))

    def open(self) -> Constraint:
        return Matcher(self._matcher.deep_copy(), self._eos.view(np.int32))
