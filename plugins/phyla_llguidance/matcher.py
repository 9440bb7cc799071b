"""One row's matcher."""

from __future__ import annotations

from collections.abc import Sequence

import llguidance
import numpy as np
import numpy.typing as npt
from phyla.errors import ConstraintError

TERSE = "<non-verbose/>"
"""What the library puts in place of what its long errors quote."""


class Matcher:
    """A `Constraint` over the library's parser."""

    def __init__(self, matcher: llguidance.LLMatcher, eos: npt.NDArray[np.int32]) -> None:
        """Over a matcher at its start.

        Args:
            matcher: this row's own.
            eos: (ceil(V / 32),) words in which the ids that end a sequence are set.
        """
        self._matcher = matcher
        self._eos = eos
        self._mask: npt.NDArray[np.int32] | None = None

    def mask(self) -> npt.NDArray[np.int32]:
        if self._mask is None:
            self._mask = self._filled()
        return self._mask

    def accept(self, token_id: int) -> None:
        # Asked first: a token that the library refuses breaks its matcher for good.
        if self._matcher.validate_tokens([token_id]) != 1:
            raise ConstraintError(f"The constraint doesn't allow token {token_id} here.")
        self._matcher.consume_token(token_id)
        self._mask = None
        checked(self._matcher)

    def rollback(self, num_tokens: int) -> None:
        if num_tokens:
            self._matcher.rollback(num_tokens)
            self._mask = None
            checked(self._matcher)

    def forced(self) -> Sequence[int]:
        return () if self._matcher.is_stopped() else tuple(self._matcher.compute_ff_tokens())

    @property
    def is_satisfied(self) -> bool:
        return bool(self._matcher.is_stopped() and self._matcher.is_accepting())

    def _filled(self) -> npt.NDArray[np.int32]:
        words = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.int32)[: len(self._eos)]
        checked(self._matcher)
        if self._matcher.is_accepting():
            return words | self._eos
        # Where the library has run out of ways on it allows an end, whether or not the answer is complete.
        words = words & ~self._eos
        if not words.any():
            raise ConstraintError("The constraint can't be satisfied from here: no token may come next.")
        return words


def checked(matcher: llguidance.LLMatcher) -> llguidance.LLMatcher:
    """The matcher, if it is well.

    Raises:
        ConstraintError: the library's reason.
    """
    if matcher.is_error():
        raise ConstraintError(matcher.get_error().replace(TERSE, "").strip())
    return matcher
