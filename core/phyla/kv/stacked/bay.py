"""Rows of like length that share their buffers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phyla.kv.row_state import RowState
    from phyla.kv.stacked.seating import Seating
    from phyla.kv.state import StackedState


@dataclass
class Bay:
    """One stacked state per layer that owns storage, and who sits where."""

    seating: Seating
    seats: list[RowState | None]
    layers: list[StackedState] = field(default_factory=list)

    @property
    def num_rows(self) -> int:
        return sum(row is not None for row in self.seats)

    @property
    def owned_bytes(self) -> int:
        return sum(layer.owned_bytes for layer in self.layers)

    @property
    def num_tokens(self) -> list[int]:
        """Per seat."""
        return self.seating.num_tokens

    def taken(self) -> Iterator[tuple[int, RowState]]:
        """Seats that have a row."""
        return ((seat, row) for seat, row in enumerate(self.seats) if row is not None)

    def free_seat(self) -> int | None:
        return next((seat for seat, row in enumerate(self.seats) if row is None), None)

    def fits(self, width: int) -> bool:
        """Whether every row has room for a step of so many positions."""
        return width <= self.seating.room and max(self.num_tokens) + width <= self.seating.capacity
