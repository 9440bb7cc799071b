"""What a constraint leaves no choice about, proposed as drafts: the target still draws every token, under its mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from phyla.draft.span import Observed, Span

if TYPE_CHECKING:
    from phyla.draft.constraint import Constraint

FORCED = "grammar"
"""What `usage` and traces call the source of forced spans."""


class ForcedSpans:
    """The spans of one row's constraint. Its matcher isn't advanced by proposing, only by what is emitted."""

    def __init__(self, constraint: Constraint, most_tokens: int) -> None:
        self._constraint = constraint
        self._most_tokens = most_tokens

    def propose(self, history: Sequence[int], room: int) -> Span | None:
        """The next forced tokens, or None where there is a choice.

        Raises:
            ConstraintError: the matcher failed; the row does.
        """
        forced = tuple(self._constraint.forced()[: min(room, self._most_tokens)])
        return Span(forced, source=FORCED) if forced else None

    def promises(self, num_tokens: int) -> bool:
        """Whether so many tokens are forced, counted from what the constraint has accepted so far."""
        return len(self._constraint.forced()) >= num_tokens

    def observe(self, step: Observed) -> None:
        """The constraint is told by whoever emits."""
