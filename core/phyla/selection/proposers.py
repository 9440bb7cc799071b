"""Which engine enforces grammars and schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phyla.draft import ConstraintEngine
from phyla.draft.fill import FillSource
from phyla.errors import UsageError
from phyla.plan import Choice
from phyla.plugins import Declared, pick
from phyla.selection.wanted import AUTO, Wanted

NO_PROPOSER = "none"
NO_FILL = "off"
Proposers = Mapping[str, Declared[ConstraintEngine | FillSource]]


def choose_proposer(wanted: Wanted, proposers: Proposers) -> Choice:
    """The constraint engine that was asked for, or the highest ranked one.

    Raises:
        UnknownName: there is none of that name.
        UsageError: it is a fill source.
    """
    if wanted.name == NO_PROPOSER:
        return wanted.choice(NO_PROPOSER)
    if not wanted.is_auto:
        chosen = pick(proposers, "proposer", wanted.name).value
        if isinstance(chosen, FillSource):
            raise UsageError(f"'{chosen.name}' enforces nothing: it is a fill source. Name it with --fill.")
        return wanted.choice(chosen.name)
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


def engine_names(proposers: Proposers) -> tuple[str, ...]:
    """What `--proposer` takes, best first."""
    return tuple(engine.name for engine in _ranked(proposers))


def fill_sources(names: Sequence[str], proposers: Proposers) -> tuple[FillSource, ...]:
    """The sources that were asked for, in the order of their names as given.

    Raises:
        UnknownName: there is none of that name.
    """
    fills = {name: one for name, one in proposers.items() if isinstance(one.value, FillSource)}
    chosen = (pick(fills, "fill source", name).value for name in dict.fromkeys(names) if name != NO_FILL)
    return tuple(one for one in chosen if isinstance(one, FillSource))


def _ranked(proposers: Proposers) -> list[ConstraintEngine]:
    return sorted(
        (one.value for one in proposers.values() if isinstance(one.value, ConstraintEngine)),
        key=lambda engine: (-engine.rank, engine.name),
    )
