"""Which engine enforces grammars and schemas."""

from __future__ import annotations

from collections.abc import Mapping

from phyla.draft import ConstraintEngine
from phyla.draft.fill import FillSource
from phyla.plan import Choice
from phyla.plugins import Declared, pick
from phyla.selection.wanted import AUTO, Wanted

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
    engines = _ranked(proposers)
    if not engines:
        return wanted.choice(NO_PROPOSER, "no constraint engine is installed")
    rejected = tuple((engine.name, f"ranks lower ({engine.rank})") for engine in engines[1:])
    return wanted.choice(engines[0].name, f"highest rank ({engines[0].rank})", rejected)


def constraint_engines(choice: Choice, proposers: Proposers) -> tuple[ConstraintEngine, ...]:
    """The engines of a plan, the chosen one first. Others follow only where nobody named it.

    Raises:
        UnknownName: the chosen one isn't loaded here.
    """
    if choice.name == NO_PROPOSER:
        return ()
    chosen = pick(proposers, "proposer", choice.name).value
    others = _ranked(proposers) if choice.chosen_by == AUTO else []
    first = [chosen] if isinstance(chosen, ConstraintEngine) else []
    return (*first, *(one for one in others if one is not chosen))


def _ranked(proposers: Proposers) -> list[ConstraintEngine]:
    return sorted(
        (one.value for one in proposers.values() if isinstance(one.value, ConstraintEngine)),
        key=lambda engine: (-engine.rank, engine.name),
    )
