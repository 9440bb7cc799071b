"""Compiling over bytes instead of the model's vocabulary: what a grammar does to the compiler shows there too."""

from __future__ import annotations

from phyla.errors import ConstraintError
from phyla.request import ConstraintSpec

EOS = 256


def trial(kind: str, source: str) -> None:
    """Compile. Runs in a process of its own.

    Raises:
        ConstraintError: it isn't well formed, or nothing satisfies it.
    """
    import xgrammar

    from phyla_xgrammar.grammar import grammar_of, library_message

    vocabulary = [*(bytes([byte]) for byte in range(256)), b""]
    info = xgrammar.TokenizerInfo(vocabulary, vocab_size=len(vocabulary), stop_token_ids=[EOS])
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    # No special token has a spelling here; a literal that names one is tried as text.
    grammar = grammar_of(ConstraintSpec(kind, source), {})
    try:
        if isinstance(grammar, str):
            compiler.compile_structural_tag(grammar)
        else:
            compiler.compile_grammar(grammar)
    except RuntimeError as error:
        raise ConstraintError(library_message(error)) from error
