"""Rows that step together, and the group that holds their states."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from phyla.kv.group import Group, GroupName

if TYPE_CHECKING:
    from phyla.engine.row import Row
    from phyla.kv.stacked.bay import Bay

T = TypeVar("T")


class Party:
    """Keeps a group and its rows in step: once it is prepared, `rows[i]` sits at place `places[i]` of a step's axis B.

    Counts go in per row, in the order of `rows`.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self.rows: list[Row] = []
        self.places: list[int] = []
        self.num_seats = 0
        self._is_settled = False

    @property
    def group_name(self) -> GroupName:
        return self._group.name

    @property
    def bays(self) -> Sequence[Bay]:
        """Buffers that all rows of a step share, in the order of its axis B; none where rows keep their own."""
        return self._group.bays

    @property
    def is_full(self) -> bool:
        """Nobody's seat is empty: a step has a row per place."""
        return len(self.rows) == self.num_seats

    def join(self, row: Row) -> None:
        """Take in a row that sits nowhere."""
        assert row.party is None, "a row sits in one group at a time"
        self._group.seat(row.state)
        self.rows.append(row)
        row.party = self
        self._is_settled = False

    def leave(self, row: Row) -> None:
        """Let a row stand up: it owns its state again. Nobody wants that of one that failed."""
        if row.error is None:
            self._group.stand(row.state)
        else:
            self._group.drop(row.state)
        self.rows = [one for one in self.rows if one is not row]
        row.party = None
        self._is_settled = False

    def keep_only(self, rows: Collection[Row]) -> None:
        """Let everybody else stand up."""
        staying = {id(row) for row in rows}
        for row in list(self.rows):
            if id(row) not in staying:
                self.leave(row)

    def prepare(self, width: int) -> None:
        """Settle who sits where, with room for a step of so many positions."""
        has_moved = self._group.prepare(width)
        if self._is_settled and not has_moved:
            return
        self._is_settled = True
        seats = self._group.seats
        place_of = {id(state): place for place, state in enumerate(seats) if state is not None}
        self.rows.sort(key=lambda row: place_of[id(row.state)])
        self.places = [place_of[id(row.state)] for row in self.rows]
        self.num_seats = len(seats)

    def spread(self, values: Sequence[T], fill: T) -> tuple[T, ...]:
        """One value per seat from one per row."""
        spread = [fill] * self.num_seats
        for place, value in zip(self.places, values, strict=True):
            spread[place] = value
        return tuple(spread)

    def advance(self, counts: Sequence[int]) -> None:
        """The step's forward was built."""
        self._group.advance(self.spread(counts, 0))

    def open_window(self, counts: Sequence[int]) -> None:
        """Promise that what each row appends next, so many tokens, may be taken back."""
        self._group.open_window(self.spread(counts, 0))

    def keep(self, counts: Sequence[int]) -> None:
        """Close the windows on the first so many tokens of each row."""
        self._group.keep(self.spread(counts, 0))

    def states(self) -> list[Any]:
        """One object per layer of the target, for all seats."""
        return self._group.states()
