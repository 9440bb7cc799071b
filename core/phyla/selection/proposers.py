"""Which engine enforces grammars and schemas."""

from __future__ import annotations

from collections.abc import Mapping

from phyla.draft import ConstraintEngine
from phyla.draft.fill import FillSource
from phyla.plan import Choice
from phyla.plugins import Declared, pick
from phyla.selection.wanted import Wanted

NO_PROPOSER = "none"
Proposers = Mapping[str, Declared[ConstraintEngine | FillSource]]


def choose_proposer(wanted: Wanted, proposers: Proposers) -> Choice:
    """The constraint engine that was asked for, or the highest ranked one.

    Raises:
        UnknownName: there is none of that name.
    """
    if wanted.name == NO_PROPOSER:
        return wanted.choice(NO_PROPOSER)
    if not wanted.is_auto:
        return wanted.choice(pick(proposers, "proposer", wanted.name).value.name)
    engines = sorted(
        (one.value for one in proposers.values() if isinstance(one.value, ConstraintEngine)),
        key=lambda engine: (-engine.rank, engine.name),
    )
    if not engines:
        return wanted.choice(NO_PROPOSER, "no constraint engine is installed")
    rejected = tuple((engine.name, f"ranks lower ({engine.rank})") for engine in engines[1:])
    return wanted.choice(engines[0].name, f"highest rank ({engines[0].rank})", rejected)
