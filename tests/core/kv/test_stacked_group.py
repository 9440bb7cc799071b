"""Rows in bays: whoever joins, leaves, grows or takes drafts back, each computes what it computes in a loop."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phyla.backend.strategy import Strategies, shipped_table
from phyla.errors import LayoutError
from phyla.kv import Explicit, LayerSpec, LayerState, Plane
from phyla.kv.group import Group, LoopGroup
from phyla.kv.plain import create_plain
from phyla.kv.row_state import TARGET, RowState
from phyla.kv.stacked.buckets import Buckets
from phyla.kv.stacked.group import StackedGroup
from phyla.kv.stacked.seating import Seating
from phyla.testing.bits import as_bytes, assert_close
from phyla.testing.engines import TEST_BACKEND
from phyla.testing.layer_feeds import NUM_TOKEN_IDS, feed_for, padded_ids

PLANES = (Plane("keys", 2, 8), Plane("values", 2, 8))
FOLDED = (Plane("sum", 1, 8, per_token=False, rows=3), Plane("tail", 1, 8, per_token=False, rows=2))
LAYOUT = (
    LayerSpec(0, "full", PLANES, scale=0.3, num_query_heads=4),
    LayerSpec(1, "full", PLANES, scale=0.5, num_query_heads=4, source=0),
    LayerSpec(2, "sliding", PLANES, scale=0.3, window=4, num_query_heads=4),
    LayerSpec(3, "recurrent", FOLDED),
)
FULL = (LayerSpec(0, "full", (Plane("keys", 4, 64), Plane("values", 4, 64)), scale=0.3, num_query_heads=4),)
SMALL = Buckets(smallest=16, step=16)
BYTES_PER_COLUMN = 2 * 2 * 8 * 4
FOLDED_BYTES = (3 * 8 + 2 * 3 * 8) * 4
ATOL = 2e-5


def plain(layer: LayerSpec) -> LayerState:
    return create_plain(layer, TEST_BACKEND, "float32")


def ids_of(start: int, count: int) -> list[int]:
    """A row's tokens follow from their positions, so that what was taken back comes again otherwise only by mistake."""
    return [(start + offset) * 7 % NUM_TOKEN_IDS for offset in range(count)]


def stepped(group: Group, fed: Sequence[Sequence[int]], width: int) -> list[mx.array]:
    """Give each row of a prepared group a step; what every layer computed, per row and in the order of `fed`."""
    rows = [row for row in group.seats if row is not None]
    places = [place for place, row in enumerate(group.seats) if row is not None]
    spread: list[Sequence[int]] = [[] for _ in group.seats]
    for place, ids in zip(places, fed, strict=True):
        spread[place] = ids
    num_real = tuple(map(len, spread))
    outputs = []
    for layer, state in zip(LAYOUT, group.states(), strict=True):
        feed = feed_for(layer)
        step = feed.step if layer.owns_state else feed.look
        outputs.append(step(state, padded_ids(spread, width), num_real))
    mx.eval(outputs)
    group.advance(num_real)
    for row, ids in zip(rows, fed, strict=True):
        row.record(ids)
    return [
        mx.concatenate([output[place, : len(ids)].reshape(len(ids), -1) for output in outputs], axis=1)
        for place, ids in zip(places, fed, strict=True)
    ]


@dataclass
class Twins:
    """The same rows in a stacked group and in a loop."""

    stacked: StackedGroup = field(default_factory=lambda: StackedGroup(LAYOUT, buckets=SMALL))
    looped: LoopGroup = field(default_factory=lambda: LoopGroup(LAYOUT))
    pairs: list[tuple[RowState, RowState]] = field(default_factory=list)

    def join(self, num_tokens: int) -> None:
        rows = RowState.fresh(LAYOUT, plain), RowState.fresh(LAYOUT, plain)
        for row in rows:
            alone = LoopGroup(LAYOUT)
            alone.seat(row)
            if num_tokens:
                stepped(alone, [ids_of(0, num_tokens)], num_tokens)
        self.stacked.seat(rows[0])
        self.looped.seat(rows[1])
        self.pairs.append(rows)

    def leave(self, index: int) -> None:
        ours, theirs = self.pairs.pop(index)
        self.stacked.stand(ours)
        self.looped.stand(theirs)
        assert ours.tokens == theirs.tokens
        assert [one.num_tokens for one in ours.sets[TARGET]] == [one.num_tokens for one in theirs.sets[TARGET]]
        got, want = (self._alone(row) for row in (ours, theirs))
        assert_close(got, want, atol=ATOL, why="computed together")

    def step(self, width: int, counts: Sequence[int], kept: Sequence[int] | None) -> None:
        """One step, in a window that keeps the first so many of each row's, or in none."""
        self.stacked.prepare(width)
        self.looped.prepare(width)
        fed = {id(ours): ids_of(ours.num_tokens, count) for (ours, _), count in zip(self.pairs, counts, strict=True)}
        kept_of = {id(ours): count for (ours, _), count in zip(self.pairs, kept or counts, strict=True)}
        twin = {id(theirs): ours for ours, theirs in self.pairs}
        outputs: dict[str, dict[int, mx.array]] = {}
        for name, group in (("stacked", self.stacked), ("looped", self.looped)):
            assert isinstance(group, StackedGroup | LoopGroup)
            ours = [None if row is None else twin.get(id(row), row) for row in group.seats]
            live = [row for row in ours if row is not None]
            if kept is not None:
                group.open_window([0 if row is None else len(fed[id(row)]) for row in ours])
            made = stepped(group, [fed[id(row)] for row in live], width)
            outputs[name] = {id(row): output for row, output in zip(live, made, strict=True)}
            if kept is not None:
                group.keep([0 if row is None else kept_of[id(row)] for row in ours])
        for row, output in outputs["stacked"].items():
            assert_close(output, outputs["looped"][row], atol=ATOL, why="computed together")

    def check_bytes(self) -> None:
        """Each bay holds what its seats need, seats are no more than they must be, and nobody has two places."""
        expected = 0
        for bay in self.stacked.bays:
            capacity, num_seats = bay.seating.capacity, bay.seating.num_seats
            assert num_seats == SMALL.seats_for(bay.num_rows)
            assert max(bay.num_tokens) <= capacity
            ring = min(capacity, 4 + bay.seating.room)
            expected += num_seats * (BYTES_PER_COLUMN * (capacity + ring) + FOLDED_BYTES)
        assert self.stacked.owned_bytes == expected
        for ours, _ in self.pairs:
            assert TARGET not in ours.sets
            assert ours.owned_bytes == 0

    def _alone(self, row: RowState) -> mx.array:
        group = LoopGroup(LAYOUT)
        group.seat(row)
        return stepped(group, [[1, 2, 3]], 4)[0]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data())
def test_rows_that_come_and_go_and_take_drafts_back_compute_what_they_do_in_a_loop(data: st.DataObject) -> None:
    twins = Twins()
    for _ in range(data.draw(st.integers(1, 3))):
        twins.join(data.draw(st.sampled_from((1, 5, 40, 130))))
    for _ in range(data.draw(st.integers(1, 8))):
        if len(twins.pairs) < 5 and data.draw(st.booleans()):
            twins.join(data.draw(st.sampled_from((0, 1, 3, 15, 16, 17, 40, 130))))
        if len(twins.pairs) > 1 and data.draw(st.booleans()):
            twins.leave(data.draw(st.integers(0, len(twins.pairs) - 1)))
        width = data.draw(st.sampled_from((1, 1, 1, 4, 8, 40)))
        counts = [data.draw(st.integers(1, width)) for _ in twins.pairs]
        kept = [data.draw(st.integers(0, count)) for count in counts] if data.draw(st.booleans()) else None
        twins.step(width, counts, kept)
        twins.check_bytes()
    while twins.pairs:
        twins.leave(0)
    assert twins.stacked.owned_bytes == 0


def seated(*lengths: int, layout: tuple[LayerSpec, ...] = LAYOUT, buckets: Buckets = SMALL) -> StackedGroup:
    """A prepared group of rows of these lengths."""
    group = StackedGroup(layout, buckets=buckets)
    for length in lengths:
        row = RowState.fresh(layout, plain)
        alone = LoopGroup(layout)
        alone.seat(row)
        for layer, state in zip(layout, alone.states(), strict=True):
            if layer.owns_state:
                mx.eval(feed_for(layer).step(state, padded_ids([ids_of(0, length)], length), (length,)))
        row.record(ids_of(0, length))
        group.seat(row)
    group.prepare(1)
    return group


def taken(group: StackedGroup) -> list[RowState]:
    """Its rows in the order of their seats."""
    return [row for row in group.seats if row is not None]


def shapes(group: StackedGroup) -> list[tuple[int, int, int]]:
    """Capacity, seats and rows of every bay."""
    return [(bay.seating.capacity, bay.seating.num_seats, bay.num_rows) for bay in group.bays]


def test_a_capacity_is_at_most_a_quarter_larger_than_what_it_holds() -> None:
    buckets = Buckets()
    assert [buckets.capacity_for(length) for length in (0, 1, 256, 257, 513, 1025)] == [256, 256, 256, 384, 640, 1280]
    assert all(
        length <= buckets.capacity_for(length) <= max(1.25 * length, length + 127, 256)
        for length in range(1, 20_000, 37)
    )
    assert len({buckets.capacity_for(length) for length in range(1, 20_000)}) < 27


def test_rows_sit_with_rows_of_like_length() -> None:
    assert shapes(seated(200, 10, 40, 190, 12)) == [(256, 2, 2), (80, 4, 3)]


def test_a_row_that_leaves_lets_the_bay_shrink_before_the_next_step() -> None:
    group = seated(10, 11, 12)
    group.stand(taken(group)[0])
    assert shapes(group) == [(48, 4, 2)]
    group.prepare(1)
    assert shapes(group) == [(48, 2, 2)]


def test_seats_are_dead_only_where_steps_are_traced() -> None:
    group = seated(10, 11, 12, buckets=replace(SMALL, is_traced=lambda num_seats: num_seats < 4))
    assert shapes(group) == [(48, 3, 3)]
    group.stand(taken(group)[1])
    group.prepare(1)
    assert shapes(group) == [(48, 2, 2)]


def test_a_newcomer_takes_a_dead_seat_and_nobody_else_moves() -> None:
    group = seated(10, 11, 12)
    [bay] = group.bays
    group.seat(RowState.fresh(LAYOUT, plain))
    group.prepare(1)
    assert group.bays == (bay,)
    assert bay.num_rows == 4


def test_a_row_that_has_not_begun_finds_nothing_of_the_one_whose_seat_it_takes() -> None:
    group = seated(10, 11, 12)
    group.stand(taken(group)[1])
    group.seat(RowState.fresh(LAYOUT, plain))
    group.prepare(1)
    fresh = RowState.fresh(LAYOUT, plain)
    alone = LoopGroup(LAYOUT)
    alone.seat(fresh)
    place = next(place for place, row in enumerate(taken(group)) if row.num_tokens == 0)
    got = stepped(group, [ids_of(0, 1)] * 3, 1)[place]
    assert_close(got, stepped(alone, [ids_of(0, 1)], 1)[0], atol=ATOL, why="computed together")


def test_stood_rows_keep_their_bits_while_the_group_goes_on() -> None:
    group = seated(10, 11)
    row = taken(group)[0]
    group.stand(row)
    before = [as_bytes(array) for state in row.sets[TARGET] for array in state.arrays().arrays.values()]
    for step in range(3):
        group.prepare(1)
        stepped(group, [ids_of(11 + step, 1)], 1)
    assert [as_bytes(array) for state in row.sets[TARGET] for array in state.arrays().arrays.values()] == before


def test_no_stood_row_keeps_the_buffers_of_its_group_alive() -> None:
    group = seated(1000, 1000, 1000, 1000, layout=FULL, buckets=Buckets())
    row, buffers = taken(group)[0], group.owned_bytes
    group.stand(row)
    mx.eval([array for state in row.sets[TARGET] for array in state.arrays().arrays.values()])
    before = mx.get_active_memory()
    del group
    gc.collect()
    assert before - mx.get_active_memory() >= buffers
    assert row.owned_bytes == 1000 * 2 * 4 * 64 * 4


@pytest.mark.parametrize("forced", [{}, {"append": "slices", "attention": "fused_mask"}])
def test_a_step_copies_no_buffer(forced: dict) -> None:
    strategies = Strategies(shipped_table("cpu"), forced)
    seating = Seating(16_384, [100, 50], strategies=strategies)
    stack = plain(FULL[0]).stacked(seating)
    assert stack is not None
    stack.fill([None, None])
    feed = feed_for(FULL[0])
    for step in range(4):
        if step == 2:
            mx.reset_peak_memory()
        mx.eval(feed.step(stack, padded_ids([[1], [2]], 1), (1, 1)), stack.evaluate())
        seating.advance((1, 1))
    assert mx.get_peak_memory() - mx.get_active_memory() < stack.owned_bytes / 4


def test_a_group_whose_step_failed_is_of_use_to_the_next_rows() -> None:
    group = seated(10, 200)
    rows = taken(group)
    for row in rows:
        group.drop(row)
    assert group.owned_bytes == 0
    assert all(state.num_tokens == 0 for row in rows for state in row.sets[TARGET])
    group.seat(RowState.fresh(LAYOUT, plain))
    group.prepare(1)
    assert shapes(group) == [(32, 1, 1)]


def test_an_explicit_mask_is_refused_with_the_remedy() -> None:
    group = seated(3, 4)
    queries, mask = mx.zeros((2, 4, 1, 8)), Explicit(mx.ones((1, 4), dtype=mx.bool_))
    with pytest.raises(LayoutError, match="--group loop"):
        group.states()[0].attend(queries, mask, (1, 1))
