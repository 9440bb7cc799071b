"""How large bays are: few sizes, so that few shapes are ever traced, and none far from what its rows need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

ROOM_TOKENS = 32
"""Behind the longest row of a new bay: the widest verify window of any width class."""

MOST_DRAG = 2
"""A row may read so many times as many columns as it has, so that rows of like length share a bay; longer company
would make it pay for tokens that aren't its own."""


def always(num_seats: int) -> bool:
    """Every step is traced."""
    return True


@dataclass(frozen=True)
class Buckets:
    """Sizes of bays: capacities in tokens, and seats."""

    smallest: int = 256
    """Capacity of the smallest bay."""

    step: int = 128
    """Between small ones; larger ones step by a quarter of the power of two below, so that at most a quarter is
    slack. A group attends over all columns, so short rows would feel a wider one."""

    is_traced: Callable[[int], bool] = always
    """Whether steps of so many seats are traced: only then are dead ones worth what it costs to compute them."""

    def seats_for(self, num_rows: int) -> int:
        """Seats of a bay: 1, 2, 4, 8, ... where steps are traced, so that a join or a leave often meets a shape that
        was traced before; elsewhere no more than there are rows."""
        padded = 1 << max(0, num_rows - 1).bit_length()
        return padded if self.is_traced(padded) else num_rows

    def capacity_for(self, num_tokens: int) -> int:
        """The smallest capacity that holds so many."""
        step = max(self.step, 1 << max(0, num_tokens.bit_length() - 3))
        return max(self.smallest, -(-num_tokens // step) * step)

    def drags_little(self, capacity: int, needed: int) -> bool:
        """Whether a row that needs so many tokens may sit in a bay of that capacity."""
        return capacity <= MOST_DRAG * max(needed, self.smallest)
