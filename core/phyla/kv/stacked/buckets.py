"""How large bays are: few sizes, so that few shapes are ever traced, and none far from what its rows need."""

from __future__ import annotations

from dataclasses import dataclass

ROOM_TOKENS = 32
"""Behind the longest row of a new bay: the widest verify window of any width class."""

MOST_DRAG = 2
"""A row may read so many times as many columns as it has, so that rows of like length share a bay; longer company
would make it pay for tokens that aren't its own."""


@dataclass(frozen=True)
class Buckets:
    """Sizes in tokens."""

    smallest: int = 256
    """Capacity of the smallest bay."""

    step: int = 128
    """Between small ones; larger ones step by a quarter of the power of two below, so that at most a quarter is
    slack. A group attends over all columns, so short rows would feel a wider one."""

    def capacity_for(self, num_tokens: int) -> int:
        """The smallest capacity that holds so many."""
        step = max(self.step, 1 << max(0, num_tokens.bit_length() - 3))
        return max(self.smallest, -(-num_tokens // step) * step)

    def drags_little(self, capacity: int, needed: int) -> bool:
        """Whether a row that needs so many tokens may sit in a bay of that capacity."""
        return capacity <= MOST_DRAG * max(needed, self.smallest)


def seats_for(num_rows: int) -> int:
    """Seats of a bay: 1, 2, 4, 8, ... A join or a leave then often meets a shape that was traced before."""
    return 1 << max(0, num_rows - 1).bit_length()
