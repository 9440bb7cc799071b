"""Compiling over bytes instead of the model's vocabulary: what a grammar does to this compiler shows there too."""

from __future__ import annotations

from phyla.draft import Trial, Vocabulary
from phyla.errors import ConstraintError
from phyla.request import ConstraintSpec


def trial(vocabulary: Vocabulary) -> Trial:
    """Compiles and fills the first mask. Runs in a process of its own.

    Nothing is precomputed for each token, so the model's own vocabulary would show nothing more.
    """
    import llguidance

    from phyla_llguidance.grammar import grammar_of
    from phyla_llguidance.limits import limits
    from phyla_llguidance.matcher import checked
    from phyla_llguidance.vocabulary import byte_tokenizer

    tokenizer = byte_tokenizer()

    def tried(kind: str, source: str) -> None:
        # No special token has a byte spelling here; a literal that names one is tried as text.
        grammar = grammar_of(ConstraintSpec(kind, source), {})
        matcher = checked(llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits()))
        matcher.compute_bitmask()
        checked(matcher)
        if matcher.is_stopped() and not matcher.is_accepting():
            raise ConstraintError("nothing satisfies it.")

    return tried
