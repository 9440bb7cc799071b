"""Where each short run of tokens occurred first."""

from __future__ import annotations

from collections.abc import Sequence

_ID_BITS = 32


class SuffixIndex:
    """The first occurrence of every run of `shortest` to `longest` tokens that something followed.

    Since only first occurrences count, forgetting nothing and adding nothing past `num_indexed` tokens are the same
    rule: memory is bounded, and what is remembered stays right.
    """

    def __init__(self, shortest: int, longest: int, num_indexed: int) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._num_indexed = num_indexed
        self._num_seen = 0
        self._first: dict[int, dict[int, int]] = {size: {} for size in self._sizes}

    def extend(self, history: Sequence[int]) -> None:
        """Take in the tokens of `history` that are new since the last call."""
        stop = min(len(history), self._num_indexed)
        # A run is entered when the token after it arrives: one that ends the history has no continuation yet.
        for end in range(max(self._num_seen, 1), stop):
            for size in self._sizes:
                if size <= end:
                    self._first[size].setdefault(_key(history[end - size : end]), end)
        self._num_seen = max(self._num_seen, stop)

    def continuation(self, history: Sequence[int], most: int) -> Sequence[int]:
        """Up to `most` tokens that followed the longest trailing run where it occurred first; empty if none did.

        Longer runs go first. The copied run may overlap the suffix itself, and ends where the history does.
        """
        for size in self._sizes:
            if size < len(history):
                after = self._first[size].get(_key(history[-size:]))
                if after is not None:
                    return history[after : after + most]
        return ()


def _key(run: Sequence[int]) -> int:
    """One integer per run: a third of the memory of a tuple of them."""
    key = 0
    for token_id in run:
        key = key << _ID_BITS | token_id
    return key
