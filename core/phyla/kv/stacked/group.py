"""Rows in bays: the group that appends and attends for everybody at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from phyla.kv.group import GroupName, looped, with_readers
from phyla.kv.row_state import TARGET, RowState
from phyla.kv.stacked.bay import Bay
from phyla.kv.stacked.buckets import ROOM_TOKENS, Buckets
from phyla.kv.stacked.joined import spans
from phyla.kv.stacked.seating import Seating
from phyla.kv.stacked.source import Seated

if TYPE_CHECKING:
    from phyla.backend.strategy import Strategies
    from phyla.kv.layer_spec import Layout
    from phyla.kv.state import LayerState


@dataclass(frozen=True)
class _Place:
    """Where a row is while bays are made anew: in a seat, or resident."""

    row: RowState
    num_tokens: int
    bay: Bay | None = None
    seat: int = 0


class StackedGroup:
    """See the module. Rows are resident until the `prepare` that follows their `seat`, and again once they stood up.

    The rows of one step may sit in several bays, by length: projections run once over all of them, and what looks at
    storage runs once per bay, so that a long row costs what it costs alone and drags nobody.

    Args:
        layout: the target's layers.
        draft_layouts: layers of each draft set by its name; draft sets stay with their rows.
        buckets: sizes of the bays.
        strategies: what the layers' ways of computing are chosen by.
    """

    name: GroupName = "stacked"

    def __init__(
        self,
        layout: Layout,
        draft_layouts: Mapping[str, Layout] | None = None,
        buckets: Buckets | None = None,
        strategies: Strategies | None = None,
    ) -> None:
        self._layout = layout
        self._draft_layouts = dict(draft_layouts or {})
        self._buckets = buckets or Buckets()
        self._strategies = strategies
        self._bays: list[Bay] = []
        self._joining: list[RowState] = []
        self._empty: dict[int, list[LayerState]] = {}
        """By `id` of each row that sits: states without tokens, which it stands up into."""

        self._states: list[Any] | None = None

    @property
    def seats(self) -> Sequence[RowState | None]:
        return [row for bay in self._bays for row in bay.seats]

    @property
    def bays(self) -> Sequence[Bay]:
        """In the order of their rows on axis B."""
        return tuple(self._bays)

    @property
    def owned_bytes(self) -> int:
        """Bytes of the bays' buffers; rows that don't sit yet hold their own."""
        return sum(bay.owned_bytes for bay in self._bays)

    def seat(self, row: RowState) -> None:
        self._joining.append(row)

    def stand(self, row: RowState) -> None:
        if self._stays_resident(row):
            return
        bay, seat = self._place_of(row)
        flat = [layer.stand(seat) for layer in bay.layers]
        # Under way before the next step is: the buffers then have one owner again and are written in place.
        mx.async_eval([array for one in flat for array in one.arrays.values()])  # type: ignore[no-untyped-call]
        states = self._empty.pop(id(row))
        for state, one in zip(states, flat, strict=True):
            state.adopt(one)
        row.stand_up(states)
        self._vacate(bay, seat)

    def drop(self, row: RowState) -> None:
        if self._stays_resident(row):
            return
        row.stand_up(self._empty.pop(id(row)))
        for bay in self.bays:
            for seat, seated in list(bay.taken()):
                if seated is row:
                    self._vacate(bay, seat)

    def prepare(self, width: int) -> bool:
        if not self._joining and self._is_settled(width):
            return False
        self._joining = [row for row in self._joining if not self._takes_a_free_seat(row, width)]
        if self._joining or not self._is_settled(width):
            self._rearrange(width)
        return True

    def states(self, set_name: str = TARGET) -> list[Any]:
        assert not self._joining, "`prepare` comes before a step"
        if set_name != TARGET:
            rows = [row.sets[set_name] for row in self.seats if row is not None]
            return looped(self._draft_layouts.get(set_name), rows)
        if self._states is None:
            by_layer = list(zip(*(bay.layers for bay in self._bays), strict=True))
            owned = [stacks[0] if len(stacks) == 1 else type(stacks[0]).joined(stacks) for stacks in by_layer]
            self._states = with_readers(self._layout, owned)
        return self._states

    def advance(self, counts: Sequence[int]) -> None:
        for bay, seats in spans(self._bays):
            bay.seating.advance(counts[seats])

    def open_window(self, counts: Sequence[int]) -> None:
        for bay, seats in spans(self._bays):
            bay.seating.open_window()
            for layer in bay.layers:
                layer.open_window(counts[seats])
            for _, row in bay.taken():
                row.note_window()

    def keep(self, counts: Sequence[int]) -> None:
        for bay, seats in spans(self._bays):
            kept = counts[seats]
            for layer in bay.layers:
                layer.keep(kept)
            bay.seating.keep(kept)
            for seat, row in bay.taken():
                row.note_kept(kept[seat])

    def _is_settled(self, width: int) -> bool:
        return all(self._can_stay(bay, width) for bay in self._bays)

    def _can_stay(self, bay: Bay, width: int) -> bool:
        """Whether its rows have room and no more seats are dead than must be."""
        return bay.fits(width) and len(bay.seats) == self._buckets.seats_for(bay.num_rows)

    def _stays_resident(self, row: RowState) -> bool:
        """Let a row go that hadn't sat down yet; whether it was one."""
        num_joining = len(self._joining)
        self._joining = [one for one in self._joining if one is not row]
        return len(self._joining) < num_joining

    def _place_of(self, row: RowState) -> tuple[Bay, int]:
        return next((bay, seat) for bay in self._bays for seat, seated in bay.taken() if seated is row)

    def _vacate(self, bay: Bay, seat: int) -> None:
        bay.seats[seat] = None
        bay.seating.place(seat, None)
        if bay.num_rows == 0:
            self._bays.remove(bay)
        self._states = None

    def _sit_down(self, row: RowState) -> list[LayerState]:
        states = row.sit_down()
        self._empty[id(row)] = [state.clone(0) for state in states]
        return states

    def _takes_a_free_seat(self, row: RowState, width: int) -> bool:
        """Where there is one nobody else's bytes move."""
        num_tokens = _resident_tokens(row)
        for bay in self._bays:
            seat, capacity = bay.free_seat(), bay.seating.capacity
            has_room = num_tokens + width <= capacity
            if seat is None or not has_room or not self._buckets.drags_little(capacity, num_tokens + ROOM_TOKENS):
                continue
            states = self._sit_down(row)
            for layer in bay.layers:
                layer.seat(seat, states.pop(0))
                mx.eval(layer.evaluate())
            bay.seats[seat] = row
            bay.seating.place(seat, num_tokens)
            return True
        return False

    def _rearrange(self, width: int) -> None:
        """New bays where rows have come, gone or outgrown theirs; a bay that stays as it is keeps its buffers."""
        places = [
            *(_Place(row, bay.num_tokens[seat], bay, seat) for bay in self._bays for seat, row in bay.taken()),
            *(_Place(row, _resident_tokens(row)) for row in self._joining),
        ]
        room = max(width, ROOM_TOKENS)
        wanted = self._arranged(places, room)
        kept = [self._bay_of(together, width) for _, together in wanted]
        self._joining, self._states = [], None
        # A failure from here on loses the rows of the bays that are taken apart; theirs fail with the step.
        retired = [bay for bay in self._bays if not any(bay is one for one in kept)]
        self._bays = [bay for bay in kept if bay is not None]
        bays: list[Bay] = []
        fresh: list[tuple[Bay, Sequence[_Place]]] = []
        for bay, (capacity, together) in zip(kept, wanted, strict=True):
            bays.append(bay or self._new_bay(capacity, together, room))
            if bay is None:
                fresh.append((bays[-1], together))
        self._build(fresh, retired)
        self._bays = bays

    def _arranged(self, places: Sequence[_Place], room: int) -> list[tuple[int, list[_Place]]]:
        """Who sits together, and in which capacity: the longest first, each with all whom it drags little."""
        left, bays = list(places), []
        while left:
            capacity = self._buckets.capacity_for(max(place.num_tokens for place in left) + room)
            together = [one for one in left if self._buckets.drags_little(capacity, one.num_tokens + room)]
            left = [one for one in left if not self._buckets.drags_little(capacity, one.num_tokens + room)]
            bays.append((capacity, together))
        return bays

    def _bay_of(self, together: Sequence[_Place], width: int) -> Bay | None:
        """The bay that holds exactly these rows and can go on doing so."""
        bay = together[0].bay
        is_same = bay is not None and all(one.bay is bay for one in together) and bay.num_rows == len(together)
        return bay if bay is not None and is_same and self._can_stay(bay, width) else None

    def _new_bay(self, capacity: int, together: Sequence[_Place], room: int) -> Bay:
        dead = [None] * (self._buckets.seats_for(len(together)) - len(together))
        seating = Seating(capacity, [*(one.num_tokens for one in together), *dead], room, self._strategies)
        return Bay(seating, [*(one.row for one in together), *dead])

    def _build(self, fresh: Sequence[tuple[Bay, Sequence[_Place]]], retired: Sequence[Bay]) -> None:
        """Layer by layer, so that only one is ever held twice."""
        resident = {
            id(one.row): self._sit_down(one.row) for _, together in fresh for one in together if one.bay is None
        }
        num_layers = sum(layer.owns_state for layer in self._layout)
        for _ in range(num_layers):
            for bay, together in fresh:
                sources: list[Seated | LayerState | None] = [
                    resident[id(one.row)].pop(0) if one.bay is None else Seated(one.bay.layers[0], one.seat)
                    for one in together
                ]
                sources += [None] * (bay.seating.num_seats - len(sources))
                layer = self._empty[id(together[0].row)][len(bay.layers)].stacked(bay.seating)
                assert layer is not None, "the engine asks before it stacks"
                layer.fill(sources)
                mx.eval(layer.evaluate())
                bay.layers.append(layer)
            for bay in retired:
                del bay.layers[0]


def _resident_tokens(row: RowState) -> int:
    """Of its states: the row itself notes a token only once the host has read it."""
    return row.sets[TARGET][0].num_tokens
