"""What the engine's parts work with, passed in once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from phyla.errors import ConstraintError

if TYPE_CHECKING:
    from phyla.draft.constraint import Constraint
    from phyla.engine.admission import Admission
    from phyla.engine.proposing import Proposing
    from phyla.engine.records import Record
    from phyla.engine.reuse import PrefixReuse
    from phyla.engine.trace import Trace
    from phyla.model.facts import ModelFacts
    from phyla.request import EngineEvent, Request
    from phyla.sampling.declaration import NamedSampler
    from phyla.tokenizer import Tokenizer


OpenConstraint = Callable[["Request"], "Constraint | None"]
"""A fresh matcher for a row of a request, or None if it wants none; a ConstraintError fails that request alone."""


def no_constraints(request: Request) -> Constraint | None:
    """Refuses what it can't enforce.

    Raises:
        ConstraintError: the request has a constraint.
    """
    if request.constraint is not None:
        raise ConstraintError(
            f"No engine is loaded that enforces a constraint of kind '{request.constraint.kind}'. Install one, or "
            "send the request without it."
        )
    return None


@dataclass(frozen=True)
class Services:
    """Used on the engine thread only."""

    facts: ModelFacts
    tokenizer: Tokenizer
    admission: Admission
    reuse: PrefixReuse
    samplers: Sequence[NamedSampler]
    eos_ids: frozenset[int]
    """Of model and tokenizer together."""

    is_solo: Callable[[Request], bool]
    chunk_tokens: int
    """Of a prefill chunk without company."""

    emit: Callable[[Sequence[EngineEvent]], None]
    tell: Callable[[Record], None]
    now: Callable[[], float]
    """Seconds of a clock that only goes forward."""

    trace: Trace
    open_constraint: OpenConstraint
    proposing: Proposing
