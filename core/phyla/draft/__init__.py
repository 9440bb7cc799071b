"""Proposing and checking tokens: the only place where tokens are accepted or rolled back.

Exported here are the mlx-free contracts; the verifier is in `phyla.draft.verify`.
"""

from phyla.draft.constraint import CompiledConstraint, Constraint, ConstraintEngine, Trial
from phyla.draft.method import Drafter, DraftFacts, DraftMethod, DraftProvider, DraftTarget, LoadableDrafter
from phyla.draft.span import Observed, RowProposal, Span, SpanSource
from phyla.draft.vocabulary import Vocabulary

__all__ = [
    "CompiledConstraint",
    "Constraint",
    "ConstraintEngine",
    "DraftFacts",
    "DraftMethod",
    "DraftProvider",
    "DraftTarget",
    "Drafter",
    "LoadableDrafter",
    "Observed",
    "RowProposal",
    "Span",
    "SpanSource",
    "Trial",
    "Vocabulary",
]
