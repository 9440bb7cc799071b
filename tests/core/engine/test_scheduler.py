"""The scheduler alone: what it promises whatever arrives, grows, is cancelled or ends."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from phyla.engine.chunks import COMPANY_CHUNK, chunk_end, chunk_rule
from phyla.engine.pace import Pace
from phyla.engine.scheduler import DecodeRound, Job, Limits, PrefillPiece, RowKey, Scheduler
from phyla.errors import QueueFull
from phyla.kv.layer_spec import LayerSpec, Plane

NUM_LAYERS = 4
TURNS_TO_ANY_ROW = 200
"""Pieces and rounds within which every row with a gap is served, at the sizes of these tests."""


def admitted(scheduler: Scheduler, *jobs: Job, num_cached: int = 0) -> None:
    for job in jobs:
        scheduler.enqueue(job)
    while (job := scheduler.admit()) is not None:
        scheduler.resume(job.request_id, num_cached)


def prefilled(scheduler: Scheduler, work: PrefillPiece) -> list[RowKey]:
    """Report a piece that took its chunk through all layers."""
    return scheduler.advanced(work.row)


def piece(scheduler: Scheduler) -> PrefillPiece:
    work = scheduler.next_work()
    assert isinstance(work, PrefillPiece)
    return work


def decode(scheduler: Scheduler) -> DecodeRound:
    work = scheduler.next_work()
    assert isinstance(work, DecodeRound)
    return work


def scheduler_of(**limits: object) -> Scheduler:
    return Scheduler(Limits(num_layers=NUM_LAYERS, **limits))  # type: ignore[arg-type]


def test_alone_the_chunks_are_the_reference_loops() -> None:
    scheduler = scheduler_of()
    admitted(scheduler, Job("a", 5000))
    sizes = []
    for _ in range(3):
        work = piece(scheduler)
        sizes.append((work.start, work.num_tokens, work.route))
        prefilled(scheduler, work)
    assert sizes == [(0, 2048, "exact"), (2048, 2048, "exact"), (4096, 903, "exact")]
    assert decode(scheduler) == DecodeRound(alone=(RowKey("a"),))


def test_a_prompt_of_one_token_runs_at_once() -> None:
    scheduler = scheduler_of()
    admitted(scheduler, Job("a", 1))
    assert decode(scheduler).alone == (RowKey("a"),)


def test_cached_tokens_are_not_computed_again() -> None:
    scheduler = scheduler_of()
    admitted(scheduler, Job("a", 100), num_cached=70)
    work = piece(scheduler)
    assert (work.start, work.num_tokens) == (70, 29)


def test_before_anything_was_measured_a_piece_is_one_layer() -> None:
    scheduler = scheduler_of()
    admitted(scheduler, Job("a", 5000))
    assert piece(scheduler).num_layers == 1


def test_a_chunk_that_fits_the_budget_is_one_piece() -> None:
    scheduler = Scheduler(Limits(num_layers=NUM_LAYERS), Pace(seconds_per_token_layer=1e-6))
    admitted(scheduler, Job("a", 100))
    assert piece(scheduler).num_layers >= NUM_LAYERS


def test_a_chunk_under_way_keeps_its_size_and_goes_on_fast_when_company_arrives() -> None:
    scheduler = scheduler_of()
    admitted(scheduler, Job("a", 5000))
    first = piece(scheduler)
    admitted(scheduler, Job("b", 1))
    decode(scheduler)
    second = piece(scheduler)
    assert (second.row, second.num_tokens, second.route, second.is_new) == (RowKey("a"), 2048, "fast", False)
    assert (first.route, first.is_new) == ("exact", True)
    prefilled(scheduler, second)
    decode(scheduler)
    third = piece(scheduler)
    assert (third.route, third.is_new) == ("fast", True)


def test_beside_running_rows_the_layers_of_a_chunk_are_spread_over_pieces_that_fit() -> None:
    scheduler = Scheduler(Limits(num_layers=NUM_LAYERS), Pace(seconds_per_token_layer=0.05 / (NUM_LAYERS * 200)))
    admitted(scheduler, Job("a", 1), Job("b", 5000))
    works = [scheduler.next_work() for _ in range(4)]
    assert [type(work) for work in works] == [PrefillPiece, DecodeRound, PrefillPiece, DecodeRound]
    pieces = [work for work in works if isinstance(work, PrefillPiece)]
    assert [(one.num_tokens, one.num_layers, one.is_new) for one in pieces] == [(512, 1, True), (512, 1, False)]


def test_long_prompts_without_running_rows_are_read_in_chunks_whose_layers_fit() -> None:
    """Two of them together cost what they cost one after the other: no cuts for tokens that nobody waits for."""
    scheduler = Scheduler(Limits(num_layers=NUM_LAYERS), Pace(seconds_per_token_layer=0.05 / 600))
    admitted(scheduler, Job("a", 5000), Job("b", 5000))
    work = piece(scheduler)
    assert (work.num_tokens, work.num_layers) == (512, 1)


def test_a_slow_model_gets_twice_its_own_step() -> None:
    pace = Pace(seconds_per_token_layer=0.001, seconds_per_step=0.2)
    assert pace.budget_seconds(0.05, has_running=True) == pytest.approx(0.4)
    assert pace.budget_seconds(0.05, has_running=False) == 0.05
    scheduler = Scheduler(Limits(num_layers=NUM_LAYERS), pace)
    admitted(scheduler, Job("a", 1), Job("b", 5000))
    work = piece(scheduler)
    assert (work.num_tokens, work.num_layers) == (256, 1)


def test_chunks_are_never_cut_below_what_matrices_need() -> None:
    scheduler = Scheduler(Limits(num_layers=NUM_LAYERS), Pace(seconds_per_token_layer=1.0))
    admitted(scheduler, Job("a", 1), Job("b", 5000))
    work = piece(scheduler)
    assert (work.num_tokens, work.num_layers) == (COMPANY_CHUNK, 1)


def test_a_row_crosses_to_the_fast_route_with_company_and_never_back() -> None:
    scheduler = scheduler_of()
    admitted(scheduler, Job("a", 1))
    assert decode(scheduler) == DecodeRound(alone=(RowKey("a"),))
    admitted(scheduler, Job("b", 1))
    assert decode(scheduler) == DecodeRound(shared=(RowKey("a"), RowKey("b")))
    scheduler.leave(RowKey("b"))
    assert decode(scheduler) == DecodeRound(shared=(RowKey("a"),))


def test_the_exact_route_is_kept_when_it_is_asked_for() -> None:
    scheduler = scheduler_of(route="exact")
    admitted(scheduler, Job("a", 1), Job("b", 1), Job("c", 5000))
    work = piece(scheduler)
    assert (work.route, work.num_tokens) == ("exact", 2048)
    assert decode(scheduler) == DecodeRound(alone=(RowKey("a"), RowKey("b")), is_before_prefill=True)


def test_strict_serves_one_after_the_other_on_the_exact_route() -> None:
    scheduler = scheduler_of(max_rows=1)
    admitted(scheduler, Job("a", 1), Job("b", 1))
    assert decode(scheduler) == DecodeRound(alone=(RowKey("a"),))
    scheduler.leave(RowKey("a"))
    admitted(scheduler)
    assert decode(scheduler) == DecodeRound(alone=(RowKey("b"),))


def test_the_fast_route_is_kept_when_it_is_asked_for() -> None:
    scheduler = scheduler_of(route="fast")
    admitted(scheduler, Job("a", 1))
    assert decode(scheduler) == DecodeRound(shared=(RowKey("a"),))


def test_a_solo_row_shares_no_step_and_holds_nobody_up() -> None:
    scheduler = scheduler_of()
    admitted(scheduler, Job("a", 1), Job("s", 1, is_solo=True), Job("b", 1))
    assert decode(scheduler) == DecodeRound(shared=(RowKey("a"), RowKey("b")), alone=(RowKey("s"),))


def test_a_solo_row_is_no_company() -> None:
    scheduler = scheduler_of()
    admitted(scheduler, Job("a", 1), Job("s", 1, is_solo=True))
    assert decode(scheduler).shared == ()


def test_a_short_prompt_gets_past_a_long_one_which_goes_on_too() -> None:
    scheduler = scheduler_of()
    admitted(scheduler, Job("long", 50_000), Job("short", 40))
    rows = []
    for _ in range(6):
        work = scheduler.next_work()
        assert work is not None
        if isinstance(work, PrefillPiece):
            rows.append(work.row.request_id)
            prefilled(scheduler, work)
    assert set(rows[:2]) == {"long", "short"}


def test_a_long_chunk_under_way_gets_its_share_of_the_work_and_not_of_the_pieces() -> None:
    """One layer of 1024 tokens is a quarter of the work beside eight prompts of 97 tokens through all four layers."""
    scheduler = Scheduler(Limits(max_rows=20, num_layers=NUM_LAYERS), Pace(seconds_per_token_layer=0.05 / 1024))
    admitted(scheduler, Job("long", 5000, chunk_tokens=1024))
    assert (piece(scheduler).num_tokens, piece(scheduler).num_layers) == (1024, 1)
    admitted(scheduler, *(Job(f"short {number}", 97) for number in range(11)))
    rows = []
    while len(rows) < 12:
        work = scheduler.next_work()
        if isinstance(work, PrefillPiece):
            rows.append(work.row.request_id)
            if work.num_tokens == 96:
                prefilled(scheduler, work)
    shorts = [f"short {number}" for number in range(11)]
    assert rows == [shorts[0], "long", *shorts[1:9], "long", shorts[9]]


def test_samples_become_rows_when_the_prefill_is_over() -> None:
    scheduler = scheduler_of()
    admitted(scheduler, Job("a", 10, num_samples=3))
    assert prefilled(scheduler, piece(scheduler)) == [RowKey("a"), RowKey("a", 1), RowKey("a", 2)]
    assert len(decode(scheduler).shared) == 3


def test_samples_past_the_places_wait_before_newer_requests() -> None:
    scheduler = scheduler_of(max_rows=2)
    admitted(scheduler, Job("a", 1, num_samples=3), Job("b", 1))
    assert decode(scheduler).shared == (RowKey("a"), RowKey("a", 1))
    scheduler.leave(RowKey("a"))
    assert scheduler.admit() is None
    assert decode(scheduler).shared == (RowKey("a", 1), RowKey("a", 2))


def test_a_request_waits_until_its_bytes_fit_and_nobody_passes_it() -> None:
    scheduler = scheduler_of(kv_budget_bytes=100)
    admitted(
        scheduler, Job("a", 1, projected_bytes=60), Job("b", 1, projected_bytes=50), Job("c", 1, projected_bytes=1)
    )
    assert scheduler.num_active == 1
    scheduler.leave(RowKey("a"))
    admitted(scheduler)
    assert scheduler.projected_bytes == 51


def test_a_full_queue_refuses() -> None:
    scheduler = scheduler_of(max_waiting=2)
    scheduler.enqueue(Job("a", 1))
    scheduler.enqueue(Job("b", 1))
    with pytest.raises(QueueFull):
        scheduler.enqueue(Job("c", 1))


@pytest.mark.parametrize(
    ("start", "wanted", "end"), [(0, 10, 10), (0, 22, 20), (10, 12, 20), (20, 4, 30), (20, 15, 35), (25, 2, 30)]
)
def test_a_chunk_never_cuts_an_atomic_span(start: int, wanted: int, end: int) -> None:
    assert chunk_end(start, wanted, 100, [(20, 30)]) == end


def test_the_chunk_rule_halves_until_the_scores_fit() -> None:
    layer = LayerSpec(0, "full", (Plane("keys", 8, 256),), num_query_heads=24)
    assert chunk_rule([layer], 10_398, True, None) == 2048
    assert chunk_rule([layer], 78_678, True, None) == 256
    assert chunk_rule([layer], 78_678, False, None) == 2048
    assert chunk_rule([layer], 78_678, True, 7) == 7


@dataclass
class _Seen:
    """What the machine knows about one request, apart from the scheduler."""

    num_prompt: int
    num_samples: int
    projected_bytes: int
    computed: int = 0
    is_admitted: bool = False
    running: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)
    turns_unserved: int = 0


class SchedulerMachine(RuleBasedStateMachine):
    """Arrivals, pieces, rounds, ends and cancels in any order."""

    @initialize(
        max_rows=st.integers(1, 4),
        budget=st.one_of(st.none(), st.integers(20, 100)),
        route=st.sampled_from(["auto", "exact", "fast"]),
        cost=st.sampled_from([None, 1e-7, 1e-3]),
    )
    def begin(self, max_rows: int, budget: int | None, route: str, cost: float | None) -> None:
        limits = Limits(
            max_rows=max_rows,
            max_waiting=5,
            num_layers=NUM_LAYERS,
            kv_budget_bytes=budget,
            route=route,  # type: ignore[arg-type]
        )
        self.scheduler = Scheduler(limits, Pace(seconds_per_token_layer=cost))
        self.limits = limits
        self.requests: dict[str, _Seen] = {}
        self.queue: list[str] = []
        self.layers_done: dict[RowKey, int] = {}
        self.number = 0

    @rule(
        num_prompt=st.one_of(st.integers(1, 5), st.integers(1, 5000)),
        num_samples=st.integers(1, 3),
        solo=st.booleans(),
        size=st.integers(0, 20),
    )
    def arrive(self, num_prompt: int, num_samples: int, solo: bool, size: int) -> None:
        name = str(self.number)
        self.number += 1
        job = Job(name, num_prompt, num_samples, projected_bytes=size, is_solo=solo)
        if len(self.queue) == self.limits.max_waiting:
            with pytest.raises(QueueFull):
                self.scheduler.enqueue(job)
            return
        self.scheduler.enqueue(job)
        self.queue.append(name)
        self.requests[name] = _Seen(num_prompt, num_samples, size)

    @rule(share_cached=st.floats(0, 1))
    def admit(self, share_cached: float) -> None:
        job = self.scheduler.admit()
        if job is None:
            return
        assert job.request_id == self.queue.pop(0), "first come, first served"
        seen = self.requests[job.request_id]
        assert not seen.is_admitted, "admitted twice"
        seen.is_admitted = True
        seen.computed = int(share_cached * (seen.num_prompt - 1))
        self._born(seen, self.scheduler.resume(job.request_id, seen.computed))

    @rule(fails=st.booleans())
    def work(self, fails: bool) -> None:
        work = self.scheduler.next_work()
        if work is None:
            assert not any(seen.is_admitted for seen in self.requests.values()), "rows were left without work"
            return
        for seen in self.requests.values():
            seen.turns_unserved += seen.is_admitted
        if isinstance(work, PrefillPiece):
            self._prefill(work, fails)
        else:
            self._decode(work)

    @precondition(lambda self: any(seen.running for seen in self.requests.values()))
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        rows = sorted((name, sample) for name, seen in self.requests.items() for sample in seen.running)
        name, sample = data.draw(st.sampled_from(rows))
        self.scheduler.leave(RowKey(name, sample))
        self.requests[name].running.discard(sample)
        self._ended(name, sample)

    @precondition(lambda self: bool(self.requests))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.requests)))
        if self.scheduler.drop_waiting(name):
            self.queue.remove(name)
        for key in self.scheduler.rows_of(name):
            self.scheduler.leave(key)
            self.layers_done.pop(key, None)
        del self.requests[name]

    @invariant()
    def places_and_bytes_are_kept(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        assert self.scheduler.num_active <= self.limits.max_rows
        assert self.scheduler.num_waiting == len(self.queue)
        admitted_now = [seen for seen in self.requests.values() if seen.is_admitted]
        total = sum(seen.projected_bytes for seen in admitted_now)
        assert self.scheduler.projected_bytes == total
        if self.limits.kv_budget_bytes is not None and len(admitted_now) > 1:
            assert total <= self.limits.kv_budget_bytes
        num_rows = sum(max(1, len(seen.running)) for seen in admitted_now)
        assert self.scheduler.num_rows == num_rows, "a row was lost or made twice"
        assert all(seen.turns_unserved <= TURNS_TO_ANY_ROW for seen in admitted_now), "a row starves"

    def _prefill(self, work: PrefillPiece, fails: bool) -> None:
        seen = self.requests[work.row.request_id]
        assert not seen.running, "a prefilled row was prefilled again"
        assert work.start == seen.computed
        assert 0 < work.num_tokens <= seen.num_prompt - 1 - work.start, "past the prompt's last token but one"
        assert work.is_new == (work.row not in self.layers_done)
        seen.turns_unserved = 0
        if fails:
            self.scheduler.leave(work.row)
            self.layers_done.pop(work.row, None)
            del self.requests[work.row.request_id]
            return
        self.layers_done[work.row] = self.layers_done.get(work.row, 0) + work.num_layers
        if self.layers_done[work.row] < NUM_LAYERS:
            return
        del self.layers_done[work.row]
        seen.computed += work.num_tokens
        self._born(seen, self.scheduler.advanced(work.row))

    def _decode(self, work: DecodeRound) -> None:
        keys = [*work.shared, *work.alone]
        assert keys, "an empty round"
        assert len(set(keys)) == len(keys), "a row stepped twice"
        assert not (self.limits.is_strict and work.shared), "a strict row shared a step"
        for key in keys:
            assert key.sample in self.requests[key.request_id].running
            self.requests[key.request_id].turns_unserved = 0

    def _born(self, seen: _Seen, keys: list[RowKey]) -> None:
        if seen.computed < seen.num_prompt - 1:
            assert keys == []
            return
        assert [key.sample for key in keys] == list(range(seen.num_samples))
        seen.running = {key.sample for key in keys}

    def _ended(self, name: str, sample: int) -> None:
        seen = self.requests[name]
        assert sample not in seen.ended, "freed twice"
        seen.ended.add(sample)
        if len(seen.ended) == seen.num_samples:
            del self.requests[name]


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(
    max_examples=60, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
