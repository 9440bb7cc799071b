"""Compiling where it can be ended, over the model's own vocabulary.

Some grammars compile at once, and then a step takes long or meets the library's limits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from phyla.draft import Trial, Vocabulary
from phyla.draft.following import check_following
from phyla.errors import ConstraintError
from phyla.request import ConstraintSpec

if TYPE_CHECKING:
    import llguidance


def trial(vocabulary: Vocabulary) -> Trial:
    """Compiles, and goes some way along. Runs in a process of its own."""
    import llguidance

    from phyla_llguidance.grammar import grammar_of
    from phyla_llguidance.limits import limits
    from phyla_llguidance.matcher import checked
    from phyla_llguidance.vocabulary import trial_tokenizer

    tokenizer = trial_tokenizer(vocabulary)

    def tried(kind: str, source: str) -> None:
        grammar = grammar_of(ConstraintSpec(kind, source), vocabulary.special_spellings)
        matcher = checked(llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits()))
        matcher.compute_bitmask()
        checked(matcher)
        if matcher.is_stopped() and not matcher.is_accepting():
            raise ConstraintError("nothing satisfies it.")
        check_following(lambda: _Followed(matcher.deep_copy()), vocabulary.eos_ids)

    return tried


class _Followed:
    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self._matcher = matcher

    def mask(self) -> npt.NDArray[np.int32]:
        from phyla_llguidance.matcher import checked

        words = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.int32)
        checked(self._matcher)
        return words

    def accept(self, token_id: int) -> bool:
        from phyla_llguidance.matcher import checked

        self._matcher.consume_token(token_id)
        checked(self._matcher)
        return not self._matcher.is_stopped()
