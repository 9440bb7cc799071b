"""A traced decode step: the tokens of the step that is built anew, one trace per shape, and a way back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from phyla.backend.strategy import Strategies, parse_forced, shipped_table
from phyla.engine.ahead import StepAhead
from phyla.engine.compiled_step import CompiledCounts, CompiledSteps
from phyla.engine.engine import EngineSpec
from phyla.engine.fast_route import FastRoute
from phyla.engine.forwarding import check_can_compile
from phyla.engine.late_input import DeferredInput, DeferredInputs
from phyla.errors import UsageError
from phyla.kv.group import Group, LoopGroup
from phyla.kv.layer_spec import FULL, LayerSpec, Layout, Plane
from phyla.kv.mask import Causal
from phyla.kv.row_state import RowState
from phyla.kv.stacked.group import StackedGroup
from phyla.model.binding import LayerStates, ModelBinding
from phyla.model.step import StepInput
from phyla.nn.attention import merge_heads
from phyla.request import SamplingParams
from phyla.testing.close import assert_close
from phyla.testing.engines import a_request, running, toy_spec
from phyla.testing.family import random_tokens
from phyla.testing.row_equality import Joining, RowEqualityContract
from phyla.testing.stepping import plain_state
from phyla.testing.toy import toy_binding

LAYERS = "SRF"
PLENTY = 1 << 60


@pytest.fixture(scope="module")
def binding() -> ModelBinding:
    """A layer of each kind that stacks."""
    return toy_binding(LAYERS)


@dataclass
class Row:
    """A row and what it said."""

    state: RowState
    tokens: list[int] = field(default_factory=list)


@dataclass
class Stepping:
    """Rows in a stacked group, decoded greedily by traced steps or by steps that are built anew."""

    binding: ModelBinding
    steps: CompiledSteps | None = None
    rows: list[Row] = field(default_factory=list)
    logits: list[mx.array] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.group = StackedGroup(self.binding.facts.layout)

    def join(self, num_prompt: int) -> None:
        """A row that has read its prompt."""
        layout = self.binding.facts.layout
        alone, state = LoopGroup(layout), RowState.fresh(layout, plain_state)
        alone.seat(state)
        ids = random_tokens(num_prompt, 256, seed=num_prompt)
        step = StepInput(mx.array([ids], dtype=mx.int32), (num_prompt,), (0,), route="fast")
        hidden = self.binding.forward(step, alone.states()).hidden
        mx.eval(hidden, stored(alone, layout))
        state.record(ids)
        alone.stand(state)
        self.group.seat(state)
        self.rows.append(Row(state, [ids[-1]]))

    def leave(self, index: int) -> None:
        self.group.stand(self.rows.pop(index).state)

    def step(self, num_steps: int = 1) -> None:
        for _ in range(num_steps):
            self.group.prepare(1)
            seats = self.group.seats
            by_state = {id(row.state): row for row in self.rows}
            here = [None if state is None else by_state[id(state)] for state in seats]
            counts = tuple(int(row is not None) for row in here)
            offsets = tuple(held for bay in self.group.bays for held in bay.num_tokens)
            ids = mx.array([[0 if row is None else row.tokens[-1]] for row in here], dtype=mx.int32)
            logits = self._logits(StepInput(ids, counts, offsets, route="fast"))
            mx.eval(logits, stored(self.group, self.binding.facts.layout))
            self.group.advance(counts)
            self.logits.append(logits[mx.array([place for place, row in enumerate(here) if row is not None])])
            for place, row in enumerate(here):
                if row is not None:
                    row.tokens.append(int(np.array(mx.argmax(logits[place]))))

    def window(self, width: int) -> mx.array:
        """Verify a window of a full bay, all of which is kept; logits of all its positions."""
        self.group.prepare(width)
        counts = (width,) * len(self.group.seats)
        ids, offsets = self.drafted(width)
        self.group.open_window(counts)
        wanted = mx.arange(ids.size, dtype=mx.int32)
        logits = self._logits(StepInput(ids, counts, offsets, route="fast", wanted=wanted))
        mx.eval(logits, stored(self.group, self.binding.facts.layout))
        self.group.advance(counts)
        self.group.keep(counts)
        return logits

    def drafted(self, width: int) -> tuple[mx.array, tuple[int, ...]]:
        """A window's (seats, width) ids, which follow from where the rows stand, and offsets."""
        offsets = tuple(held for bay in self.group.bays for held in bay.num_tokens)
        return mx.array([random_tokens(width, 256, seed=offset) for offset in offsets], dtype=mx.int32), offsets

    def _logits(self, step: StepInput) -> mx.array:
        if self.steps is not None:
            traced = self.steps.run(step, self.group.bays, self.group.states(), is_awaited=step.width > 1)
            if traced is not None:
                return traced
        hidden = self.binding.forward(step, self.group.states()).hidden
        return self.binding.logits_of(hidden, "fast")[0]


def stored(group: Group, layout: Layout) -> list[mx.array]:
    states = zip(group.states(), layout, strict=True)
    return [array for state, layer in states if layer.owns_state for array in state.evaluate()]


def tracing(binding: ModelBinding, **changes: Any) -> CompiledSteps:
    options: dict[str, Any] = {"is_wanted": lambda seats: True, "room_bytes": PLENTY} | changes
    return CompiledSteps(binding, **options)


def company(run: Stepping) -> None:
    """Rows join, leave, leave dead seats, and outgrow the smallest bay."""
    run.join(5)
    run.step(2)
    run.join(218)
    run.step(3)
    run.join(9)
    run.step(3)
    run.leave(0)
    run.step(5)
    run.join(7)
    run.step(2)


def test_a_traced_step_gives_what_one_that_is_built_anew_gives(binding: ModelBinding) -> None:
    traced, anew = Stepping(binding, tracing(binding)), Stepping(binding)
    company(traced)
    company(anew)
    assert [row.tokens for row in traced.rows] == [row.tokens for row in anew.rows]
    for got, expected in zip(traced.logits, anew.logits, strict=True):
        assert_close(got, expected, atol=2e-5, why="float32, fused element-wise kernels")
    assert traced.steps is not None
    counts = traced.steps.counts
    assert (counts.steps, counts.failures, counts.too_large) == (15, 0, 0)
    # Seats and capacities decide the shape; who sits in them, and who is gone, doesn't.
    assert counts.traces == counts.shapes < 7
    assert counts.retraces == 0


def test_ids_of_another_dtype_meet_the_same_trace(binding: ModelBinding) -> None:
    run = Stepping(binding, tracing(binding))
    run.join(5)
    run.step(2)
    assert run.steps is not None
    step = StepInput(mx.array([[3]], dtype=mx.uint32), (1,), (7,), route="fast")
    assert run.steps.run(step, run.group.bays, run.group.states()) is not None
    assert (run.steps.counts.traces, run.steps.counts.shapes) == (1, 1)


def test_a_trace_holds_no_buffers(binding: ModelBinding) -> None:
    run = Stepping(binding, tracing(binding))
    run.join(5)
    run.step(2)
    owned = run.group.owned_bytes
    run.logits.clear()
    mx.synchronize()
    before = mx.get_active_memory()
    run.leave(0)
    mx.synchronize()
    # What the row takes with it is small beside the buffer that it leaves.
    assert before - mx.get_active_memory() > 0.8 * owned


def test_a_replayed_step_writes_into_the_buffers_it_was_given(binding: ModelBinding) -> None:
    run = Stepping(binding, tracing(binding))
    run.join(1000)
    run.step(3)
    mx.synchronize()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    run.step(1)
    full = run.group.bays[0].layers[2].owned_bytes
    # Keys and values of the full layer aren't copied: one of the two would be half of this.
    assert mx.get_peak_memory() - before < full // 4


class Borrowing(ModelBinding):
    """Two layers: the second has no storage and reads the first one's."""

    def __init__(self) -> None:
        first = LayerSpec(0, FULL, (Plane("keys", 2, 16), Plane("values", 2, 16)), scale=0.25, num_query_heads=2)
        super().__init__(replace(toy_binding("FF").facts, layout=(first, replace(first, index=1, source=0))))
        self._rows = mx.random.normal((512, 32), key=mx.random.key(3))

    def embed(self, step: StepInput) -> mx.array:
        return self._rows[step.ids.reshape(-1)]

    def layer(self, index: int, hidden: mx.array, step: StepInput, states: LayerStates) -> mx.array:
        heads = mx.sin(hidden).reshape(step.num_rows, step.width, 2, 16).transpose(0, 2, 1, 3)
        if index == 0:
            states[0].append(heads, heads, step.num_real)
        attended = states[index].attend(heads, Causal(), step.num_real)
        return hidden + merge_heads(attended)

    def head(self, hidden: mx.array) -> mx.array:
        return hidden @ self._rows.T


@pytest.mark.parametrize("make", [lambda: toy_binding("FSFFS"), Borrowing])
def test_a_window_in_two_pieces_gives_what_one_that_is_built_anew_gives(make: Callable[[], ModelBinding]) -> None:
    binding = make()
    traced, anew = Stepping(binding, tracing(binding)), Stepping(binding)
    for length in (5, 218):
        traced.join(length)
        anew.join(length)
        for width in (4, 8, 4):
            assert_close(traced.window(width), anew.window(width), atol=2e-5, why="float32, fused kernels")
    assert traced.steps is not None
    # Of one row and of two in bays of their own, in two widths: two pieces are one trace.
    assert traced.steps.counts == CompiledCounts(shapes=4, traces=4, steps=6)


def test_a_window_writes_into_the_buffers_it_was_given() -> None:
    binding = toy_binding("FSFF")
    run = Stepping(binding, tracing(binding))
    run.join(40)
    run.window(4)
    before = addresses(run)
    run.window(4)
    # Keys and values of no layer are copied, whichever piece it is in.
    assert addresses(run) == before


def test_a_window_that_was_started_ahead_gives_the_same_numbers() -> None:
    binding = toy_binding("FSFF")
    usual, ahead = Stepping(binding, tracing(binding)), Stepping(binding, tracing(binding))
    for run in (usual, ahead):
        run.join(5)
        run.join(9)
        run.window(4)
    before = addresses(ahead)
    for _ in range(2):
        # One that nobody wants in the end, and one that is behind it on the device.
        started(ahead, 4).drop()
        step = started(ahead, 4)
        ids, offsets = ahead.drafted(4)
        step.post(ids.tolist(), offsets)  # type: ignore[arg-type]
        logits = step.logits()
        assert mx.array_equal(logits, usual.window(4))
        assert not step.was_late()
        ahead.group.advance((4, 4))
    assert ahead.steps is not None
    assert ahead.steps.counts.retraces == 0
    # Of no layer are keys and values copied, whichever piece it is in.
    assert addresses(ahead) == before


class Dispatched(DeferredInputs):
    """Of a device that has all of a window's kernels before the tokens are there."""

    def open(self, otherwise: Sequence[int]) -> DeferredInput:
        late = DeferredInput(otherwise)
        late.is_dispatchable = True
        return late


def test_a_window_ahead_of_one_that_is_waited_for_writes_into_the_same_buffers() -> None:
    binding = toy_binding("FSFF")
    run = Stepping(binding, tracing(binding))
    run.join(40)
    run.window(4)
    before = addresses(run)
    step = started(run, 4, Dispatched())
    ids, offsets = run.drafted(4)
    step.post(ids.tolist(), offsets)  # type: ignore[arg-type]
    logits = step.logits()
    mx.async_eval(logits)  # type: ignore[no-untyped-call]
    after = started(run, 4, Dispatched())
    mx.eval(logits)
    after.drop()
    assert not step.was_late()
    assert addresses(run) == before


def test_nothing_is_started_ahead_that_was_never_traced(binding: ModelBinding) -> None:
    run = Stepping(binding, tracing(binding))
    run.join(5)
    run.step(1)
    assert run.steps is not None
    assert run.steps.begun(4, run.group.bays, run.group.states(), DeferredInputs()) is None


def started(run: Stepping, width: int, inputs: DeferredInputs | None = None) -> StepAhead:
    assert run.steps is not None
    run.group.prepare(2 * width)
    step = run.steps.begun(width, run.group.bays, run.group.states(), inputs or DeferredInputs())
    assert step is not None
    return step


def addresses(run: Stepping) -> list[int]:
    planes = stored(run.group, run.binding.facts.layout)
    return [np.asarray(plane).__array_interface__["data"][0] for plane in planes]


def test_the_front_of_a_window_is_under_way_before_the_rest_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def noting(piece: Any) -> Any:
        compiled = mx.compile(piece)

        def run(*arrays: Any) -> Any:
            seen.append("rest" if arrays[3] else "front")
            return compiled(*arrays)

        return run

    dispatch = mx.async_eval

    def noted(*arrays: Any) -> None:
        seen.append("dispatch")
        dispatch(*arrays)  # type: ignore[no-untyped-call]

    monkeypatch.setattr(mx, "async_eval", noted)
    binding = toy_binding("FF")
    run = Stepping(binding, tracing(binding, compile=noting))
    run.join(5)
    seen.clear()
    run.window(4)
    run.window(4)
    # A shape's first window may yet have to be built anew from the old buffers.
    assert seen == ["front", "rest", "front", "dispatch", "rest"]


def test_a_window_that_fails_once_its_front_is_under_way_fails() -> None:
    def breaking(piece: Any) -> Any:
        calls = iter(range(9))

        def run(*arrays: Any) -> Any:
            if arrays[3] and next(calls):
                raise MemoryError("no memory for the rest")
            return piece(*arrays)

        return run

    binding = toy_binding("FF")
    run = Stepping(binding, tracing(binding, compile=breaking))
    run.join(5)
    run.window(4)
    with pytest.raises(MemoryError, match="for the rest"):
        run.window(4)


@pytest.fixture
def failing() -> Callable[[int], ModelBinding]:
    """A model whose traced step fails at a layer."""

    def make(at: int) -> ModelBinding:
        made = toy_binding(LAYERS)
        layer = made.layer

        def fails(index: int, hidden: mx.array, step: StepInput, states: Any) -> mx.array:
            if index == at and isinstance(step.offsets, mx.array):
                raise RuntimeError("no kernel for that")
            return layer(index, hidden, step, states)

        made.layer = fails  # type: ignore[method-assign]
        return made

    return make


@pytest.mark.parametrize("at", range(len(LAYERS)))
def test_a_step_that_cannot_be_traced_is_built_anew_and_so_are_all_after_it(
    failing: Callable[[int], ModelBinding], binding: ModelBinding, at: int
) -> None:
    broken = failing(at)
    tried, anew = Stepping(broken, tracing(broken)), Stepping(binding)
    company(tried)
    company(anew)
    assert [row.tokens for row in tried.rows] == [row.tokens for row in anew.rows]
    for got, expected in zip(tried.logits, anew.logits, strict=True):
        assert mx.array_equal(got, expected)
    assert tried.steps is not None
    assert tried.steps.counts == CompiledCounts(
        shapes=1, traces=1, failures=1, failure="RuntimeError: no kernel for that"
    )


def test_a_first_step_that_fails_when_it_is_run_gives_the_buffers_back(binding: ModelBinding) -> None:
    def broken(step: Any) -> Any:
        def run(*arrays: Any) -> Any:
            step(*arrays)
            raise MemoryError("no memory for a second copy")

        return run

    tried, anew = Stepping(binding, tracing(binding, compile=broken)), Stepping(binding)
    company(tried)
    company(anew)
    assert [row.tokens for row in tried.rows] == [row.tokens for row in anew.rows]
    assert tried.steps is not None
    assert (tried.steps.counts.failures, tried.steps.counts.steps) == (1, 0)


def test_without_room_for_a_second_copy_nothing_is_traced(binding: ModelBinding) -> None:
    run = Stepping(binding, tracing(binding, room_bytes=0))
    run.join(5)
    run.step(3)
    assert run.steps is not None
    assert run.steps.counts == CompiledCounts(too_large=3)


def test_room_is_wanted_for_the_logits_of_every_position() -> None:
    binding = toy_binding("FF", vocab_size=65536, hidden_size=16)
    run = Stepping(binding, tracing(binding))
    run.join(5)
    logits = 32 * 65536 * 4
    run.group.prepare(32)
    mx.synchronize()
    room = mx.get_active_memory() + run.group.owned_bytes + logits
    for missing, is_traced in ((logits // 2, False), (-logits // 2, True)):
        run.steps = tracing(binding, room_bytes=room - missing)
        run.window(32)
        assert (run.steps.counts.steps == 1, run.steps.counts.too_large == 0) == (is_traced, is_traced)


def fast_route(compiled: Any, force: str = "auto") -> FastRoute:
    return FastRoute(Strategies(shipped_table("cpu"), parse_forced(force)), compiled_decode=compiled)


@pytest.mark.parametrize(
    ("settings", "fast", "is_replayed"),
    [
        ({"group": "stacked"}, fast_route("on"), True),
        ({"group": "stacked"}, fast_route("off"), False),
        ({"group": "stacked"}, fast_route("auto"), False),
        ({"group": "loop"}, fast_route("on"), False),
        ({}, fast_route("off", "attention=loop"), False),
        ({}, fast_route("off", "attention=fused_mask,append=slices"), False),
    ],
)
def test_an_engine_gives_the_same_tokens_whatever_its_fast_route(
    settings: dict[str, Any], fast: FastRoute, is_replayed: bool
) -> None:
    requests = [
        a_request(f"row-{length}", random_tokens(length, 512, seed=length), 12, SamplingParams(ignore_eos=True))
        for length in (3, 30)
    ]

    def said(spec: Any) -> tuple[list[list[int]], Any]:
        with running(spec) as (engine, log):
            # On the engine's thread: the second row meets the first whatever the machine is doing.
            engine.subscribe(Joining(engine, requests, every=2))
            engine.submit(requests[0])
            return [log.wait(request.request_id).ids for request in requests], engine.stats()["fast_route"]

    plain, nothing = said(toy_spec(LAYERS, {"group": "loop"}))
    got, stats = said(toy_spec(LAYERS, settings, fast=fast))
    assert (got, nothing) == (plain, None)
    compiled = stats["compiled"]
    assert (compiled["steps"] > 0, compiled["retraces"], compiled["failures"]) == (is_replayed, 0, 0)
    assert compiled["traces"] == compiled["shapes"]


class TestTracedRows(RowEqualityContract):
    """Joins, leaves, samplers and cancels over traced steps."""

    def spec(self, settings: Mapping[str, Any]) -> EngineSpec:
        return toy_spec(LAYERS, settings, fast=fast_route("on"))


def test_a_model_that_cannot_be_stacked_refuses_compiled_steps() -> None:
    layout = toy_binding("LF").facts.layout
    row = RowState.fresh(layout, plain_state)
    check_can_compile("auto", layout, row)
    with pytest.raises(UsageError, match=r"--compiled-decode on can't run here: layer 0 \(latent\)"):
        check_can_compile("on", layout, row)
