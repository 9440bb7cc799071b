"""What each mask value lets a query see, on every storage that lowers it."""

import mlx.core as mx
import pytest
from phyla.kv import Bidirectional, BidirectionalSpans, Causal, Explicit, LayerSpec, Mask, Plane, RowLengths, Windowed
from phyla.kv.loops import KeyValueLoop, mask_of_rows
from phyla.kv.plain.full import FullState
from phyla.kv.plain.ring import RingState

NUM_COLUMNS = 16
PLANES = (Plane("keys", 1, 4), Plane("values", 1, NUM_COLUMNS))


def seen(
    state: FullState | RingState, mask: Mask, positions: list[int], *, width: int | None = None
) -> list[list[int]]:
    """Positions that each query of a step sees: values are one-hot, so the output spells out who was looked at."""
    width = width or len(positions)
    padded = positions + [NUM_COLUMNS - 1] * (width - len(positions))
    values = mx.eye(NUM_COLUMNS)[mx.array(padded)][None, None]
    state.append(mx.zeros((1, 1, width, 4)), values, (len(positions),))
    looked = state.attend(mx.zeros((1, 1, width, 4)), mask, (len(positions),))
    return visible_in(looked)[: len(positions)]


def visible_in(looked: mx.array) -> list[list[int]]:
    rows: list[list[float]] = looked[0, 0].tolist()  # type: ignore[assignment]
    return [[column for column, weight in enumerate(row) if weight > 0] for row in rows]


def filled_full(num_tokens: int) -> FullState:
    state = FullState(LayerSpec(0, "full", PLANES))
    seen(state, Causal(), list(range(num_tokens)))
    return state


def filled_ring(num_tokens: int, window: int, *, one_by_one: bool = True) -> RingState:
    state = RingState(LayerSpec(0, "sliding", PLANES, window=window))
    for position in range(num_tokens):
        seen(state, Windowed(window), [position])
    return state


def test_causal_sees_itself_and_what_came_before() -> None:
    assert seen(filled_full(2), Causal(), [2, 3]) == [[0, 1, 2], [0, 1, 2, 3]]


def test_a_window_on_full_storage_ends_behind_the_query() -> None:
    assert seen(filled_full(4), Windowed(2), [4, 5]) == [[3, 4], [4, 5]]


def test_bidirectional_sees_the_whole_step() -> None:
    assert seen(filled_full(1), Bidirectional(), [1, 2]) == [[0, 1, 2], [0, 1, 2]]


def test_bidirectional_never_sees_padding() -> None:
    assert seen(filled_full(1), Bidirectional(), [1, 2], width=4) == [[0, 1, 2], [0, 1, 2]]


def test_a_span_sees_itself_whole_and_is_causal_outside() -> None:
    mask = BidirectionalSpans(((2, 4),))
    assert seen(filled_full(1), mask, [1, 2, 3, 4]) == [[0, 1], [0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3, 4]]


def test_a_span_on_a_ring_keeps_the_window_outside() -> None:
    mask = BidirectionalSpans(((6, 8),), within=Windowed(3))
    assert seen(filled_ring(5, 3), mask, [5, 6, 7]) == [[3, 4, 5], [4, 5, 6, 7], [5, 6, 7]]


def test_an_explicit_mask_is_taken_as_it_is() -> None:
    assert seen(filled_full(2), Explicit(mx.array([[True, False, True]])), [2]) == [[0, 2]]


def test_row_lengths_end_what_a_row_may_see() -> None:
    assert seen(filled_full(4), RowLengths((3,), within=Bidirectional()), [4]) == [[0, 1, 2]]


def test_a_wrapped_ring_sees_its_last_window() -> None:
    assert seen(filled_ring(7, 4), Windowed(4), [7]) == [[4, 5, 6, 7]]


def test_a_narrower_window_on_a_wrapped_ring_follows_positions_not_columns() -> None:
    assert seen(filled_ring(6, 4), Windowed(2), [6]) == [[5, 6]]


def test_causal_on_a_ring_is_its_window() -> None:
    assert seen(filled_ring(6, 3), Causal(), [6, 7]) == [[4, 5, 6], [5, 6, 7]]


@pytest.mark.parametrize("num_tokens", [2, 3, 7])
def test_a_reader_after_the_step_sees_what_a_next_token_would(num_tokens: int) -> None:
    reader = filled_ring(num_tokens, 3).reader(includes_step=False)
    looked = visible_in(reader.attend(mx.zeros((1, 1, 1, 4)), Windowed(3), (1,)))
    assert looked == [list(range(max(0, num_tokens - 2), num_tokens))]


def test_a_reader_within_the_step_sees_the_step() -> None:
    state = filled_full(2)
    seen(state, Causal(), [2, 3])
    reader = state.reader(includes_step=True)
    assert reader.includes_step
    assert visible_in(reader.attend(mx.zeros((1, 1, 2, 4)), Causal(), (2,))) == [[0, 1, 2], [0, 1, 2, 3]]


def test_a_reader_after_the_step_sees_everything_stored_from_each_query() -> None:
    reader = filled_full(3).reader(includes_step=False)
    assert visible_in(reader.attend(mx.zeros((1, 1, 2, 4)), Causal(), (2,))) == [[0, 1, 2], [0, 1, 2]]


def test_each_row_of_a_group_gets_its_own_part_of_a_mask() -> None:
    explicit = Explicit(mx.array([[[[True, False]]], [[[False, True]]]]))
    assert mask_of_rows(RowLengths((5, 7)), slice(1, 2)) == RowLengths((7,))
    row = mask_of_rows(explicit, slice(1, 2))
    assert isinstance(row, Explicit)
    assert row.allowed.tolist() == [[[[False, True]]]]
    assert mask_of_rows(Causal(), slice(1, 2)) == Causal()


def test_row_lengths_reach_the_rows_of_a_group() -> None:
    group = KeyValueLoop([filled_full(3), filled_full(5)])
    lengths = RowLengths((2, 4), within=Bidirectional())
    looked = group.reader(includes_step=False).attend(mx.zeros((2, 1, 1, 4)), lengths, (1, 1))
    assert [visible_in(looked[row : row + 1]) for row in (0, 1)] == [[[0, 1]], [[0, 1, 2, 3]]]
