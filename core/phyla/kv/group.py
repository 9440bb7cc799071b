"""Rows that step together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from phyla.errors import LayoutError
from phyla.kv.kinds import Lender
from phyla.kv.row_state import TARGET, RowState

if TYPE_CHECKING:
    from phyla.kv.layer_spec import Layout
    from phyla.kv.stacked.bay import Bay
    from phyla.kv.state import GroupState, LayerState

GroupName = Literal["loop", "stacked"]


class Group(Protocol):
    """A set of rows whose layers are stepped as one.

    `seat` and `stand` may come at any time between two steps; `prepare` comes before each, and `advance` after each
    forward. Counts are per seat, 0 for one that nobody has.
    """

    name: GroupName

    @property
    def seats(self) -> Sequence[RowState | None]:
        """Who sits where on a step's axis B; None is a dead seat. Settled by `prepare`."""
        ...

    @property
    def bays(self) -> Sequence[Bay]:
        """Buffers that all rows of a step share, in the order of its axis B; none where rows keep their own."""
        ...

    def seat(self, row: RowState) -> None:
        """Let a row join."""
        ...

    def stand(self, row: RowState) -> None:
        """Let a row leave: afterwards it is resident and owns what it holds."""
        ...

    def drop(self, row: RowState) -> None:
        """Let a row leave whose state nobody wants, whatever happened to the group: what it then holds is no use."""
        ...

    def prepare(self, width: int) -> bool:
        """Make room for a step of so many positions; whether seats changed."""
        ...

    def states(self, set_name: str = TARGET) -> list[Any]:
        """One object per layer that speaks its kind's protocol for all seats; a reader where the layer borrows."""
        ...

    def advance(self, counts: Sequence[int]) -> None:
        """The step's forward was built: so many tokens are stored per seat."""
        ...

    def open_window(self, counts: Sequence[int]) -> None:
        """Open windows in the target's set, for each row's own number of tokens (0: none in that row)."""
        ...

    def keep(self, counts: Sequence[int]) -> None:
        """Close the windows on the first `counts[seat]` target tokens."""
        ...


class LoopGroup:
    """The always-right group: resident rows, one after the other. A lone row gets no extra array operation.

    Args:
        layout: the target's layers.
        draft_layouts: layers of each draft set by its name, where borrowing layers need readers.
    """

    name: GroupName = "loop"

    def __init__(self, layout: Layout, draft_layouts: Mapping[str, Layout] | None = None) -> None:
        self._layouts: dict[str, Layout] = {TARGET: layout, **(draft_layouts or {})}
        self._rows: list[RowState] = []
        self._looped: dict[str, list[Any]] = {}

    @property
    def rows(self) -> Sequence[RowState]:
        """In the order in which they joined."""
        return tuple(self._rows)

    @property
    def seats(self) -> Sequence[RowState | None]:
        return self.rows

    @property
    def bays(self) -> Sequence[Bay]:
        return ()

    def seat(self, row: RowState) -> None:
        self._rows.append(row)
        self._looped.clear()

    def stand(self, row: RowState) -> None:
        index = next(index for index, seated in enumerate(self._rows) if seated is row)
        del self._rows[index]
        self._looped.clear()

    def drop(self, row: RowState) -> None:
        self.stand(row)

    def prepare(self, width: int) -> bool:
        """Resident rows make their own room."""
        return False

    def advance(self, counts: Sequence[int]) -> None:
        """Resident rows count for themselves."""

    def states(self, set_name: str = TARGET) -> list[Any]:
        if set_name not in self._looped:
            self._looped[set_name] = self._loop(set_name)
        return self._looped[set_name]

    def open_window(self, counts: Sequence[int]) -> None:
        for row, count in zip(self._rows, counts, strict=True):
            if count > 0:
                row.open_window(count)

    def keep(self, counts: Sequence[int]) -> None:
        for row, count in zip(self._rows, counts, strict=True):
            if row.has_open_window:
                row.keep(count)

    def _loop(self, set_name: str) -> list[Any]:
        return looped(self._layouts.get(set_name), [row.sets[set_name] for row in self._rows])


def looped(layout: Layout | None, rows: Sequence[Sequence[LayerState]]) -> list[Any]:
    """One object per layer for several rows' states, as a `LoopGroup` of those rows would give it.

    Args:
        layout: of the set; None where no layer borrows.
        rows: each row's states, one per layer that owns storage.
    """
    assert rows, "a group without rows has no states"
    owned = [loop_of(states) for states in zip(*rows, strict=True)]
    return list(owned) if layout is None else with_readers(layout, owned)


def loop_of(states: Sequence[LayerState]) -> GroupState:
    """The loop form of one layer's states, one per row."""
    return type(states[0]).loop(states)


def with_readers(layout: Layout, owned: Sequence[GroupState]) -> list[Any]:
    """One object per layer of the layout: its own group form, or a reader on the layer it borrows from.

    Raises:
        LayoutError: a layer borrows from one that comes later, borrows itself, or has nothing to lend.
    """
    remaining = iter(owned)
    by_layer: list[Any] = []
    for layer in layout:
        if layer.source is None:
            by_layer.append(next(remaining))
            continue
        donor = by_layer[layer.source] if layer.source < len(by_layer) else None
        if not isinstance(donor, Lender):
            raise LayoutError(
                f"Layer {layer.index} reads the storage of layer {layer.source}, which lends none: "
                f"a donor comes earlier, stores its own tokens and has a `reader`."
            )
        by_layer.append(donor.reader(layer.scale, layer.softcap))
    return by_layer
