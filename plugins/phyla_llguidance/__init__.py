"""Grammars and JSON schemas enforced by llguidance: small, fast, without torch.

Parses with Earley's algorithm over lexemes made of derivatives of regular expressions, so nothing is precomputed per
token and a schema compiles in milliseconds.
"""

from __future__ import annotations

from phyla import ConstraintEngine, FillSource, Settings, hookimpl

phyla_api = 1

RANK = 10


@hookimpl
def phyla_proposers(settings: Settings) -> list[ConstraintEngine | FillSource]:
    from phyla_llguidance.engine import LlguidanceEngine
    from phyla_llguidance.support import NAME, supports
    from phyla_llguidance.trial import trial

    engine = LlguidanceEngine()
    return [
        ConstraintEngine(
            name=NAME,
            supports=supports,
            compile=engine.compile,
            trial=trial,
            rank=RANK,
        )
    ]
