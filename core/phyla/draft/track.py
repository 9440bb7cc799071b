"""Trying a lookup without paying for it: what it would have proposed against what plain steps brought."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phyla.draft.length import DraftLength
    from phyla.draft.span import SpanSource


class Track:
    """Whether a row is somewhere that its source knows.

    A round reads each token before the next step is built, so that a row which is nowhere in particular would pay for
    proposals that it hardly ever gets. It steps plainly instead until a silent guess was right.
    """

    def __init__(self, source: SpanSource, length: DraftLength) -> None:
        self._source = source
        self._length = length
        self._guess: int | None = None
        self._was_right = False

    @property
    def is_on_track(self) -> bool:
        """The last guess, or a draft of the last round, was right, and there is another one."""
        return self._was_right and self._guess is not None

    def stepped(self, history: Sequence[int], num_new: int = 1) -> None:
        """A step brought the last tokens of `history` without this source: evidence like a draft's, and free."""
        self._was_right = self._guess == history[-num_new]
        if self._guess is not None:
            self._length.record(1, int(self._was_right))
        self._look(history)

    def verified(self, history: Sequence[int], num_accepted: int) -> None:
        """A round brought the last tokens of `history`."""
        self._was_right = num_accepted > 0
        self._look(history)

    def _look(self, history: Sequence[int]) -> None:
        span = self._source.propose(history, 1)
        self._guess = span.tokens[0] if span is not None and span.tokens else None
