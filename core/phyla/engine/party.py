"""Rows that step together, and the group that holds their states."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from phyla.kv.group import Group

if TYPE_CHECKING:
    from phyla.engine.row import Row


class Party:
    """Keeps a group and its rows in step: `rows[b]` is at place b of a step's axis B."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.rows: list[Row] = []

    def join(self, row: Row) -> None:
        """Seat a row that sits nowhere; it comes last."""
        assert row.party is None, "a row sits in one group at a time"
        self._group.seat(row.state)
        self.rows.append(row)
        row.party = self

    def leave(self, row: Row) -> None:
        """Let a row stand up: it owns its state again."""
        self._group.stand(row.state)
        self.rows = [one for one in self.rows if one is not row]
        row.party = None

    def keep_only(self, rows: Collection[Row]) -> None:
        """Let everybody else stand up."""
        staying = {id(row) for row in rows}
        for row in list(self.rows):
            if id(row) not in staying:
                self.leave(row)

    def open_window(self, counts: Sequence[int]) -> None:
        """Promise that what each row appends next, so many tokens, may be taken back."""
        self._group.open_window(counts)

    def keep(self, counts: Sequence[int]) -> None:
        """Close the windows on the first so many tokens of each row."""
        self._group.keep(counts)

    def states(self) -> list[Any]:
        """One object per layer of the target, for all rows."""
        return self._group.states()
