"""When tokens came, and the rate that follows: counted from when every row runs, so that joining isn't measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

NUM_WARM = 4
"""Tokens of each row before counting begins: the first steps of a group trace, seat and fill a pipeline."""


@dataclass
class Window:
    """Of one run of some rows.

    Args:
        num_rows: that run together.
        num_tokens: of each row to count; 0 ends with every row's first one.
        most_seconds: ends the counting earlier.
    """

    num_rows: int
    num_tokens: int
    most_seconds: float = float("inf")
    began: float = 0.0
    """When the prompts were handed over; set by who does."""

    _counts: list[int] = field(default_factory=list, init=False)
    _first: float | None = field(default=None, init=False)
    _from: float | None = field(default=None, init=False)
    _until: float = field(default=0.0, init=False)
    _num_counted: int = field(default=0, init=False)
    _is_over: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._counts = [0] * self.num_rows

    def saw(self, rows: Sequence[int], now: float) -> bool:
        """Note tokens, one entry of `rows` for each; whether the window is over."""
        if self._is_over:
            return True
        for row in rows:
            self._counts[row] += 1
        if self._first is None and min(self._counts) >= 1:
            self._first = now
        if self._from is None:
            if min(self._counts) >= NUM_WARM:
                self._from = now
        else:
            self._num_counted += len(rows)
            self._until = now
        self._is_over = self._is_complete(now)
        return self._is_over

    @property
    def is_over(self) -> bool:
        return self._is_over

    @property
    def first_seconds(self) -> float:
        """Until every row had its first token."""
        assert self._first is not None, "some row has no token"
        return self._first - self.began

    @property
    def tokens_per_second(self) -> float:
        """Of all rows together, while they all ran."""
        assert self._from is not None, "the rows never ran together"
        return self._num_counted / (self._until - self._from)

    def _is_complete(self, now: float) -> bool:
        if self.num_tokens == 0:
            return self._first is not None
        if self._from is None or not self._num_counted:
            return False
        return self._num_counted >= self.num_rows * self.num_tokens or now - self._from >= self.most_seconds
