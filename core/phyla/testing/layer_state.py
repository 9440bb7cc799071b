"""The contract of a layer's storage, as a suite to subclass.

    class TestRing(LayerStateContract):
        layer = LayerSpec(0, "sliding", planes, window=8, num_query_heads=4)

An invented kind overrides `new_state` and `feed`; a scheme overrides `new_state`.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phyla.backend.device import BackendFacts
from phyla.errors import CannotRewind, LayoutError
from phyla.kv.layer_spec import LayerSpec
from phyla.kv.plain import create_plain
from phyla.kv.stacked.seating import Seating
from phyla.kv.state import LayerState, StateArrays
from phyla.testing.bits import assert_close, same_bits, same_state
from phyla.testing.layer_feeds import NUM_TOKEN_IDS, Feed, feed_for, padded_ids

Step = tuple[int, int]
"""Width and real positions."""

WIDTHS = (1, 1, 1, 2, 4, 8, 17)
PAD_IDS = (0, NUM_TOKEN_IDS - 1)
STACKED_CAPACITY = 160
"""Tokens: more than a made-up history and what is appended behind it."""

inherited = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)
"""A property of a suite runs once per subclass; the same examples each time, so that a failure comes back."""


@st.composite
def steps(draw: st.DrawFn, max_steps: int = 6) -> list[Step]:
    """A row's history: plain, wide and padded steps."""
    widths = draw(st.lists(st.sampled_from(WIDTHS), max_size=max_steps))
    return [(width, draw(st.integers(min(1, width), width))) for width in widths]


class LayerStateContract:
    """Subclass and set `layer`."""

    layer: LayerSpec
    rewind_atol = 2e-5
    """Bound on a rewound state's outputs against one that never went further: columns may lie in another order."""

    width_atol = 2e-5
    """Bound between padded and unpadded steps: another width takes another path through the kernels."""

    def new_state(self) -> LayerState:
        """An empty state."""
        facts = BackendFacts("cpu", "test", "test", memory_bytes=1 << 30, working_set_bytes=1 << 30)
        return create_plain(self.layer, facts, "float32")

    def feed(self) -> Feed:
        """How a step reaches this kind."""
        return feed_for(self.layer)

    @inherited
    @given(before=steps(), width=st.sampled_from((1, 4, 8)), data=st.data())
    def test_keep_equals_never_given(self, before: list[Step], width: int, data: st.DataObject) -> None:
        num_drafted = data.draw(st.integers(1, width))
        num_kept = data.draw(st.integers(0, num_drafted))
        state = self.filled(before)
        state.open_window(num_drafted)
        self.give(state, (width, num_drafted))
        state.keep(num_kept)
        expected = self.filled(before)
        self.give(expected, (width, num_kept))
        assert same_state(state, expected)
        self.assert_goes_on_equally(state, expected)

    @inherited
    @given(before=steps(), num_drafted=st.integers(1, 9), data=st.data())
    def test_keep_after_single_steps_equals_never_given(
        self, before: list[Step], num_drafted: int, data: st.DataObject
    ) -> None:
        num_kept = data.draw(st.integers(0, num_drafted))
        state = self.filled(before)
        state.open_window(num_drafted)
        self.give(state, *[(1, 1)] * num_drafted)
        state.keep(num_kept)
        expected = self.filled([*before, *[(1, 1)] * num_kept])
        assert same_state(state, expected)
        self.assert_goes_on_equally(state, expected)

    @inherited
    @given(before=steps(), width=st.sampled_from((1, 4, 8, 17)), data=st.data())
    def test_clone_at_is_what_keep_would_leave(self, before: list[Step], width: int, data: st.DataObject) -> None:
        num_kept = data.draw(st.integers(0, width))
        state = self.filled(before)
        state.open_window(width)
        self.give(state, (width, width))
        copy = state.clone_at(num_kept)
        expected = self.filled(before)
        self.give(expected, (width, num_kept))
        assert same_state(copy, expected)
        state.keep(width)
        assert same_state(state, self.filled([*before, (width, width)]))
        self.assert_goes_on_equally(copy, expected)

    @inherited
    @given(before=steps(), after=steps(max_steps=3))
    def test_neither_side_of_a_clone_sees_the_others_tokens(self, before: list[Step], after: list[Step]) -> None:
        state = self.filled(before)
        copy = state.clone()
        untouched = self.filled(before)
        self.give(copy, *after)
        assert same_state(state, untouched)
        self.give(state, *[(1, 1)] * 3)
        assert same_state(copy, self.filled([*before, *after]))

    @inherited
    @given(before=steps(), data=st.data())
    def test_a_rewound_clone_goes_on_like_a_state_that_never_went_further(
        self, before: list[Step], data: st.DataObject
    ) -> None:
        state = self.filled(before)
        length = data.draw(st.integers(0, state.num_tokens))
        if not state.can_rewind_to(length):
            with pytest.raises(CannotRewind):
                state.clone(length)
            return
        copy, expected = state.clone(length), self.new_state()
        self.give(expected, *[(1, 1)] * length)
        assert copy.num_tokens == length
        got = self.feed().step(copy, padded_ids([[7, 8, 9]], 3), (3,))
        want = self.feed().step(expected, padded_ids([[7, 8, 9]], 3), (3,))
        assert_close(got, want, atol=self.rewind_atol, why="columns in another order")

    @inherited
    @given(before=steps())
    def test_a_state_can_always_be_cloned_where_it_stands_and_at_nothing(self, before: list[Step]) -> None:
        state = self.filled(before)
        assert state.can_rewind_to(state.num_tokens)
        assert state.can_rewind_to(0)
        assert not state.can_rewind_to(state.num_tokens + 1)
        assert state.clone(0).num_tokens == 0

    @inherited
    @given(before=steps())
    def test_a_state_that_never_forgets_goes_back_anywhere(self, before: list[Step]) -> None:
        state = self.filled(before)
        assert state.forgets or all(state.can_rewind_to(length) for length in range(state.num_tokens + 1))

    @inherited
    @given(before=steps())
    def test_arrays_restore_the_state_bit_for_bit(self, before: list[Step]) -> None:
        state, restored = self.filled(before), self.new_state()
        restored.adopt(state.arrays())
        assert same_state(restored, state)
        self.assert_goes_on_equally(restored, state)

    def test_an_adopted_state_leaves_the_arrays_as_they_were(self) -> None:
        donor = self.filled([(8, 8)])
        flat = donor.arrays()
        adopted = self.new_state()
        adopted.adopt(flat)
        self.give(adopted, *[(1, 1)] * 3)
        again = self.new_state()
        again.adopt(flat)
        assert same_state(again, donor)

    def test_arrays_of_another_layout_are_refused(self) -> None:
        flat = self.filled([(8, 8)]).arrays()
        foreign = StateArrays({f"{name}_of_another": array for name, array in flat.arrays.items()}, flat.facts)
        with pytest.raises(LayoutError):
            self.new_state().adopt(foreign)

    @inherited
    @given(before=steps(), width=st.sampled_from((4, 8)), data=st.data())
    def test_padded_positions_leave_no_trace(self, before: list[Step], width: int, data: st.DataObject) -> None:
        num_real = data.draw(st.integers(1, width))
        one, other, exact = self.filled(before), self.filled(before), self.filled(before)
        outputs = [self.give(state, (width, num_real), pad) for state, pad in zip((one, other), PAD_IDS, strict=True)]
        unpadded = self.give(exact, (num_real, num_real))
        assert same_state(one, other)
        assert same_bits(outputs[0][:, :num_real], outputs[1][:, :num_real])
        assert_close(outputs[0][:, :num_real], unpadded, atol=self.width_atol, why="another step width")
        self.assert_goes_on_equally(one, other)

    @inherited
    @given(histories=st.lists(steps(), min_size=1, max_size=4), width=st.sampled_from((1, 4, 8)), data=st.data())
    def test_a_loop_group_computes_what_its_rows_compute_alone(
        self, histories: list[list[Step]], width: int, data: st.DataObject
    ) -> None:
        num_real = [data.draw(st.integers(0, width)) for _ in histories]
        rows = [list(range(row + 1, row + 1 + count)) for row, count in enumerate(num_real)]
        together = [self.filled(history) for history in histories]
        alone = [self.filled(history) for history in histories]
        group = type(together[0]).loop(together)
        outputs = self.feed().step(group, padded_ids(rows, width), tuple(num_real))
        for row, state in enumerate(alone):
            own = self.feed().step(state, padded_ids([rows[row]], width), (num_real[row],))
            assert same_bits(outputs[row : row + 1, : num_real[row]], own[:, : num_real[row]])
            assert same_state(together[row], state)
        assert list(group.num_tokens) == [state.num_tokens for state in alone]
        assert outputs.shape[:2] == (len(rows), width)

    @inherited
    @given(
        histories=st.lists(steps(), min_size=1, max_size=3),
        widths=st.lists(st.sampled_from((1, 1, 4, 8)), min_size=1, max_size=4),
        data=st.data(),
    )
    def test_a_stacked_form_computes_what_a_loop_does(
        self, histories: list[list[Step]], widths: list[int], data: st.DataObject
    ) -> None:
        rows = [self.filled(history) for history in histories]
        seating = Seating(STACKED_CAPACITY, [None, *(row.num_tokens for row in rows)])
        stack = rows[0].stacked(seating)
        if stack is None:
            return
        stack.fill([None, *(self.filled(history) for history in histories)])
        loop = type(rows[0]).loop(rows)
        for width in widths:
            num_real = [data.draw(st.integers(0, width)) for _ in rows]
            num_kept = [data.draw(st.integers(0, count)) for count in num_real]
            ids = [[data.draw(st.integers(0, NUM_TOKEN_IDS - 1)) for _ in range(count)] for count in num_real]
            loop.open_window(num_real)
            seating.open_window()
            stack.open_window([0, *num_real])
            want = self.feed().step(loop, padded_ids(ids, width), tuple(num_real))
            got = self.feed().step(stack, padded_ids([[], *ids], width, PAD_IDS[1]), (0, *num_real))
            seating.advance([0, *num_real])
            for row, count in enumerate(num_real):
                why = "more rows and columns in one product"
                assert_close(got[row + 1, :count], want[row, :count], atol=self.width_atol, why=why)
            loop.keep(num_kept)
            stack.keep([0, *num_kept])
            seating.keep([0, *num_kept])
            assert list(stack.num_tokens) == [0, *loop.num_tokens]
        for seat, state in enumerate(rows, start=1):
            stood = self.new_state()
            stood.adopt(stack.stand(seat))
            assert stood.num_tokens == state.num_tokens
            for step in ((4, 3), (1, 1)):
                got, want = self.give(stood, step)[:, : step[1]], self.give(state, step)[:, : step[1]]
                assert_close(got, want, atol=self.width_atol, why="computed together, and columns in another order")

    def test_a_row_that_stands_up_owns_its_used_length_and_no_more(self) -> None:
        seating = Seating(4096, [30, 600, None, None])
        stack = self.new_state().stacked(seating)
        if stack is None:
            return
        stack.fill([self.filled([(17, 17), (13, 13)]), self.filled([(600, 600)]), None, None])
        mx.eval(stack.evaluate())
        before, held = mx.get_active_memory(), stack.owned_bytes
        flat = stack.stand(1)
        mx.eval(list(flat.arrays.values()))
        del stack
        gc.collect()
        kept = mx.get_active_memory() - before + held
        # MLX may keep up to 16 KiB more under a small array than it shows.
        assert kept <= sum(array.nbytes for array in flat.arrays.values()) + 16384 * 4

    def test_a_groups_windows_close_row_by_row(self) -> None:
        together = [self.filled([(8, 5)]), self.filled([(17, 17)]), self.filled([(1, 1)])]
        group = type(together[0]).loop(together)
        group.open_window((4, 0, 2))
        self.feed().step(group, padded_ids([[1, 2, 3, 4], [5], [6, 7]], 4), (4, 1, 2))
        group.keep((2, 0, 0))
        assert list(group.num_tokens) == [7, 18, 1]

    def test_a_group_names_the_arrays_that_make_its_state_real(self) -> None:
        together = [self.filled([(8, 8)]), self.filled([(4, 3)])]
        pending = type(together[0]).loop(together).evaluate()
        mx.eval(pending)
        assert pending

    def test_owned_bytes_are_the_bytes_kept_alive(self) -> None:
        gc.collect()
        before = mx.get_active_memory()
        state = self.filled([(600, 600), (1, 1), (1, 1)])
        gc.collect()
        held = mx.get_active_memory() - before
        # MLX may keep up to 16 KiB more under a small array than it shows.
        assert held <= state.owned_bytes + 16384 * 4
        assert held >= sum(array.nbytes for array in state.arrays().arrays.values()) * 0.99

    def test_an_empty_state_owns_nothing(self) -> None:
        assert self.new_state().owned_bytes == 0
        assert self.new_state().num_tokens == 0

    def filled(self, history: Sequence[Step]) -> LayerState:
        """A fresh state that was given these steps."""
        state = self.new_state()
        self.give(state, *history)
        return state

    def give(self, state: LayerState, *history_and_pad: Step | int) -> mx.array:
        """Feed steps whose ids follow from the positions; the output of the last, evaluated."""
        pads = [one for one in history_and_pad if isinstance(one, int)]
        pad = pads[0] if pads else 0
        output = mx.zeros((1, 0, 0))
        for one in history_and_pad:
            if isinstance(one, int):
                continue
            width, num_real = one
            ids = [(state.num_tokens + offset) * 7 % NUM_TOKEN_IDS for offset in range(num_real)]
            output = self.feed().step(state, padded_ids([ids], width, pad), (num_real,))
            mx.eval(output, *state.arrays().arrays.values())
        return output

    def assert_goes_on_equally(self, one: LayerState, other: LayerState) -> None:
        """Later steps can't tell the two apart."""
        for step in ((4, 3), (1, 1), (8, 8)):
            assert same_bits(self.give(one, step)[:, : step[1]], self.give(other, step)[:, : step[1]])
        assert same_state(one, other)
