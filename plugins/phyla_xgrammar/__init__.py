"""Grammars and JSON schemas enforced by xgrammar: masks are largely precomputed, so steps are cheap.

Importing it brings torch along, which takes seconds: that happens when a constraint is first compiled, before the
server's port opens, and never on the engine thread.
"""

from __future__ import annotations

from importlib.util import find_spec

from phyla import ConstraintEngine, FillSource, Settings, hookimpl

phyla_api = 1

RANK = 20
"""Where it is installed it is preferred."""


@hookimpl
def phyla_proposers(settings: Settings) -> list[ConstraintEngine | FillSource]:
    # An extra: without it the plugin is there and offers nothing.
    if find_spec("xgrammar") is None:
        return []
    from phyla_xgrammar.engine import XgrammarEngine
    from phyla_xgrammar.support import NAME, supports
    from phyla_xgrammar.trial import trial

    engine = XgrammarEngine()
    return [
        ConstraintEngine(
            name=NAME,
            supports=supports,
            compile=engine.compile,
            trial=trial,
            rank=RANK,
        )
    ]
