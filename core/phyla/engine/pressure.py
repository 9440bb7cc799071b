"""When retained prefixes have to make room for rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

PRESSURE_SHARE = 0.85
"""Of the device's memory, weights included, before retained prefixes go; the rest is for a step's workspace."""


@dataclass(frozen=True)
class Pressure:
    """Memory shortage makes retained prefixes go; it never makes a request wait or fail."""

    limit_bytes: int
    used_bytes: Callable[[], int]
    """Of weights, rows, retained prefixes and workspace, now."""

    row_bytes: Callable[[int], int]
    """What a row of so many tokens stores."""

    def excess(self, num_new_tokens: int = 0) -> int:
        """Bytes over the limit once a row of so many tokens is there; one that begins with a hit is billed whole.

        Without a number of tokens nothing new is coming: asked after every step, so that it adds up no layers.
        """
        num_new_bytes = self.row_bytes(num_new_tokens) if num_new_tokens else 0
        return max(0, self.used_bytes() + num_new_bytes - self.limit_bytes)
