"""Rows of several sets, and groups of rows."""

import io

import mlx.core as mx
import pytest
from phyla.backend.device import BackendFacts
from phyla.errors import CannotRewind, LayoutError
from phyla.kv import Causal, LayerSpec, LayerState, Plane
from phyla.kv.group import LoopGroup
from phyla.kv.plain import create_plain
from phyla.kv.row_state import RowState, draft_set
from phyla.testing.bits import same_bits, same_state
from phyla.testing.layer_feeds import feed_for, padded_ids

PLANES = (Plane("keys", 2, 8), Plane("values", 2, 8))
RECURRENT_PLANES = (Plane("sum", 1, 8, per_token=False, rows=3), Plane("tail", 1, 8, per_token=False, rows=2))
LAYOUT = (
    LayerSpec(0, "full", PLANES, scale=0.3, num_query_heads=4),
    LayerSpec(1, "full", PLANES, scale=0.5, num_query_heads=4, source=0),
    LayerSpec(2, "sliding", PLANES, scale=0.3, window=4, num_query_heads=4),
    LayerSpec(3, "recurrent", RECURRENT_PLANES),
)
FULL_ONLY = LAYOUT[:1]
CPU = BackendFacts("cpu", "test", "test", memory_bytes=1 << 30, working_set_bytes=1 << 30)
DRAFT = draft_set("toy")


def plain(layer: LayerSpec) -> LayerState:
    return create_plain(layer, CPU, "float32")


def stepped(group: LoopGroup, rows: list[list[int]], width: int, set_name: str = "target") -> None:
    """Give a step to every owning layer of a set, and note the target's tokens."""
    num_real = tuple(len(row) for row in rows)
    owning = [layer for layer in LAYOUT if layer.owns_state][: len(group.rows[0].sets[set_name])]
    by_index = dict(zip([layer.index for layer in LAYOUT], group.states(), strict=False))
    for place, layer in enumerate(owning):
        storage = by_index[layer.index] if set_name == "target" else group.states(set_name)[place]
        mx.eval(feed_for(layer).step(storage, padded_ids(rows, width), num_real))
    if set_name == "target":
        for row, ids in zip(group.rows, rows, strict=True):
            row.record(ids)


def group_of(*rows: RowState) -> LoopGroup:
    group = LoopGroup(LAYOUT)
    for row in rows:
        group.seat(row)
    return group


def test_a_fresh_row_has_a_state_per_layer_that_owns_one() -> None:
    row = RowState.fresh(LAYOUT, plain)
    assert len(row.sets["target"]) == 3
    assert row.num_tokens == 0
    assert row.owned_bytes == 0


def test_a_borrowing_layer_gets_a_reader_with_its_own_scale() -> None:
    row = RowState.fresh(LAYOUT, plain)
    group = group_of(row)
    stepped(group, [[1, 2, 3]], 3)
    donor, reader = group.states()[:2]
    queries = mx.random.normal((1, 4, 3, 8), key=mx.random.key(0))
    assert reader.includes_step
    assert not same_bits(reader.attend(queries, Causal(), (3,)), donor.attend(queries, Causal(), (3,)))
    assert same_bits(reader.attend(queries, Causal(), (3,)), donor.reader(scale=0.5).attend(queries, Causal(), (3,)))


def test_borrowing_from_a_layer_that_lends_nothing_is_refused() -> None:
    layout = (LayerSpec(0, "recurrent", RECURRENT_PLANES), LayerSpec(1, "full", PLANES, source=0))
    group = LoopGroup(layout)
    group.seat(RowState.fresh(layout, plain))
    with pytest.raises(LayoutError, match="layer 0, which lends none"):
        group.states()


def test_borrowing_from_a_later_layer_is_refused() -> None:
    layout = (LayerSpec(0, "full", PLANES, source=1), LayerSpec(1, "full", PLANES))
    group = LoopGroup(layout)
    group.seat(RowState.fresh(layout, plain))
    with pytest.raises(LayoutError, match="Layer 0 reads"):
        group.states()


def test_rows_join_and_leave_without_moving() -> None:
    one, other = RowState.fresh(LAYOUT, plain), RowState.fresh(LAYOUT, plain)
    group = group_of(one)
    stepped(group, [[1, 2, 3]], 3)
    group.seat(other)
    stepped(group, [[4], [5, 6]], 4)
    group.stand(one)
    stepped(group, [[7]], 1)
    assert (one.tokens, other.tokens) == ([1, 2, 3, 4], [5, 6, 7])
    assert [state.num_tokens for state in other.sets["target"]] == [3, 3, 3]
    assert list(group.rows) == [other]


def test_a_window_takes_tokens_back_in_every_layer_and_row() -> None:
    one, other = RowState.fresh(LAYOUT, plain), RowState.fresh(LAYOUT, plain)
    group = group_of(one, other)
    stepped(group, [[1, 2, 3, 4, 5], [6]], 8)
    group.open_window((4, 2))
    stepped(group, [[7, 8, 9, 10], [11, 12]], 4)
    group.keep((1, 0))
    assert (one.tokens, other.tokens) == ([1, 2, 3, 4, 5, 7], [6])
    assert [state.num_tokens for state in one.sets["target"] + other.sets["target"]] == [6, 6, 6, 1, 1, 1]


def test_a_verify_leaves_the_draft_set_to_its_source() -> None:
    row = RowState.fresh(LAYOUT, plain)
    row.add_set(DRAFT, [plain(FULL_ONLY[0])])
    group = group_of(row)
    stepped(group, [[1, 2, 3]], 3)
    stepped(group, [[1, 2, 3]], 3, DRAFT)
    group.open_window((4,))
    stepped(group, [[4, 5, 6]], 3, DRAFT)
    stepped(group, [[4, 5, 6, 7]], 4)
    group.keep((1,))
    assert row.sets[DRAFT][0].num_tokens == 6
    assert row.num_tokens == 4


@pytest.mark.parametrize(
    ("num_behind", "num_kept", "num_left"), [(0, 2, 2), (1, 2, 1), (3, 2, 0), (0, 4, 4), (3, 4, 1)]
)
def test_a_draft_set_goes_back_with_a_chunk_and_stays_as_far_behind(num_behind, num_kept, num_left) -> None:
    row = RowState.fresh(LAYOUT, plain)
    row.add_set(DRAFT, [plain(FULL_ONLY[0])])
    group = group_of(row)
    row.open_window(4, with_drafts=True)
    stepped(group, [[4, 5, 6, 7]], 4)
    stepped(group, [[4, 5, 6, 7][: 4 - num_behind]], 4, DRAFT)
    copy = row.clone_at(num_kept)
    row.keep(num_kept)
    assert [one.sets[DRAFT][0].num_tokens for one in (copy, row)] == [num_left, num_left]
    assert row.tokens == copy.tokens == [4, 5, 6, 7][:num_kept]


def test_a_dropped_set_is_gone_from_clones_too() -> None:
    row = RowState.fresh(LAYOUT, plain)
    row.add_set(DRAFT, [plain(FULL_ONLY[0])])
    row.drop_set(DRAFT)
    row.drop_set(DRAFT)
    assert set(row.clone().sets) == {"target"}


def test_a_row_goes_back_only_where_all_its_layers_can() -> None:
    row = RowState.fresh(LAYOUT, plain)
    stepped(group_of(row), [[1, 2, 3]], 3)
    assert [row.can_rewind_to(length) for length in (0, 2, 3)] == [True, False, True]
    with pytest.raises(CannotRewind):
        row.clone(2)
    assert row.clone(0).num_tokens == 0


def test_a_clone_goes_its_own_way() -> None:
    row = RowState.fresh(LAYOUT, plain)
    stepped(group_of(row), [[1, 2, 3]], 3)
    copy = row.clone()
    stepped(group_of(copy), [[9]], 1)
    assert (row.tokens, copy.tokens) == ([1, 2, 3], [1, 2, 3, 9])
    assert [state.num_tokens for state in row.sets["target"]] == [3, 3, 3]


def test_a_clone_inside_a_window_is_what_keeping_would_leave() -> None:
    row, expected = RowState.fresh(LAYOUT, plain), RowState.fresh(LAYOUT, plain)
    row.open_window(4)
    stepped(group_of(row), [[1, 2, 3, 4]], 4)
    copy = row.clone_at(2)
    expected.open_window(4)
    stepped(group_of(expected), [[1, 2, 3, 4]], 4)
    expected.keep(2)
    assert copy.tokens == expected.tokens == [1, 2]
    pairs = zip(copy.sets["target"], expected.sets["target"], strict=True)
    assert all(same_state(got, want) for got, want in pairs)
    assert row.has_open_window


def test_a_target_is_cloned_without_a_drafter_that_cannot_follow() -> None:
    layout = LAYOUT[:1]
    row = RowState.fresh(layout, plain)
    row.add_set(DRAFT, [plain(LAYOUT[3])])
    group = LoopGroup(layout)
    group.seat(row)
    mx.eval(feed_for(layout[0]).step(group.states()[0], padded_ids([[1, 2, 3]], 3), (3,)))
    mx.eval(feed_for(LAYOUT[3]).step(group.states(DRAFT)[0], padded_ids([[1, 2, 3]], 3), (3,)))
    row.record([1, 2, 3])
    assert set(row.clone(2).sets) == {"target"}
    assert set(row.clone().sets) == {"target", DRAFT}


@pytest.mark.parametrize("layer", [layer for layer in LAYOUT if layer.owns_state], ids=lambda layer: layer.kind)
def test_a_lone_rows_group_adds_no_array_operation(layer: LayerSpec) -> None:
    alone, grouped = plain(layer), plain(layer)
    ids = padded_ids([[1, 2, 3]], 3)
    group = type(grouped).loop([grouped])
    own = num_operations(feed_for(layer).step(alone, ids, (3,)))
    looped = num_operations(feed_for(layer).step(group, ids, (3,)))
    assert own == looped > 0


def num_operations(output: mx.array) -> int:
    """Edges of the unevaluated graph behind an array."""
    dot = io.StringIO()
    mx.export_to_dot(dot, output)
    return dot.getvalue().count("->")
