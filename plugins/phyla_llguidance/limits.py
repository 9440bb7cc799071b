"""The library's own limits: compiling and each step are bounded, whatever the grammar."""

from __future__ import annotations

import llguidance

MAX_GRAMMAR_SYMBOLS = 100_000
MAX_LEXER_STATES = 100_000
"""About 200 MB at worst."""

STEP_LEXER_FUEL = 1_000_000
"""Some tens of milliseconds of one step; a large vocabulary's first mask needs more than the library's default."""


def limits() -> llguidance.LLParserLimits:
    return llguidance.LLParserLimits(
        max_grammar_size=MAX_GRAMMAR_SYMBOLS,
        max_lexer_states=MAX_LEXER_STATES,
        step_lexer_fuel=STEP_LEXER_FUEL,
        # Its long form quotes the schema and the parser's state, which have no place in a client's error.
        verbose_errors=False,
    )
