"""A constraint that steps back: an answer may begin with a marker, and is free after it until another one ends that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from phyla.errors import ConstraintError
from phyla.sampling.token_mask import allowed_only, allows

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from phyla.draft.constraint import Constraint


def unless_opened(marker: Sequence[int], waiting: Constraint, constraint: Constraint, *, vocab_size: int) -> Constraint:
    """`constraint`, or `waiting` over the same matcher where the answer begins with `marker`.

    Args:
        marker: ids that open what `waiting` waits for the end of, such as reasoning; empty means that nothing does.
        waiting: begins after `marker`; see `after`.
        constraint: a fresh matcher, at its start whenever `waiting` is told something.
        vocab_size: ids that have a logit.
    """
    return _UnlessOpened(tuple(marker), waiting, constraint, vocab_size) if marker else constraint


class _UnlessOpened:
    """Undecided while every token so far could belong to the marker; the constraint may allow those tokens too."""

    def __init__(self, marker: tuple[int, ...], waiting: Constraint, inner: Constraint, vocab_size: int) -> None:
        self._marker = marker
        self._waiting = waiting
        self._inner = inner
        self._vocab_size = vocab_size
        self._is: Literal["undecided", "open", "answer"] = "undecided"
        self._num_told = 0
        """Tokens accepted."""

        self._num_inner = 0
        """Of these, how many the constraint was told while nothing was decided: all, unless it didn't allow one."""

    def mask(self) -> npt.NDArray[np.int32] | None:
        if self._is != "undecided":
            return self._current.mask()
        opening = allowed_only([self._marker[self._num_told]], self._vocab_size)
        if not self._fits:
            return opening
        mask = self._inner.mask()
        if mask is None:
            return None
        both = mask.copy()
        num_words = min(len(both), len(opening))
        both[:num_words] |= opening[:num_words]
        return both

    def accept(self, token_id: int) -> None:
        if self._is != "undecided":
            self._current.accept(token_id)
        elif token_id == self._marker[self._num_told]:
            self._accept_of_marker(token_id)
        elif self._fits:
            self._inner.accept(token_id)
            self._is = "answer"
        else:
            raise ConstraintError(f"The constraint doesn't allow token {token_id} here.")
        self._num_told += 1

    def rollback(self, num_tokens: int) -> None:
        num_kept = self._num_told - num_tokens
        if self._is == "open":
            num_within = min(num_tokens, self._num_told - len(self._marker))
            self._waiting.rollback(num_within)
            if num_kept < len(self._marker):
                self._begin_again(num_kept)
        elif self._is == "answer":
            self._inner.rollback(num_tokens)
            if num_kept <= self._num_inner:
                self._is, self._num_inner = "undecided", num_kept
        elif self._num_inner > num_kept:
            self._inner.rollback(self._num_inner - num_kept)
            self._num_inner = num_kept
        self._num_told = num_kept

    def forced(self) -> Sequence[int]:
        if self._is != "undecided":
            return self._current.forced()
        return () if self._fits else self._marker[self._num_told :]

    @property
    def is_satisfied(self) -> bool:
        return self._is != "undecided" and self._current.is_satisfied

    @property
    def _current(self) -> Constraint:
        return self._waiting if self._is == "open" else self._inner

    @property
    def _fits(self) -> bool:
        """Whether what was said could also be the answer's own beginning."""
        return self._num_inner == self._num_told

    def _accept_of_marker(self, token_id: int) -> None:
        if self._num_told + 1 == len(self._marker):
            # Read as the marker whatever else it could have been: that is what a parser of the answer does.
            self._inner.rollback(self._num_inner)
            self._is, self._num_inner = "open", 0
        elif self._fits and self._allows(token_id):
            self._inner.accept(token_id)
            self._num_inner += 1

    def _allows(self, token_id: int) -> bool:
        mask = self._inner.mask()
        return mask is None or allows(mask, token_id)

    def _begin_again(self, num_kept: int) -> None:
        """Back to where the marker wasn't whole yet."""
        self._is, self._num_told, self._num_inner = "undecided", 0, 0
        for token_id in self._marker[:num_kept]:
            self.accept(token_id)
