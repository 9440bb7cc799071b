"""Prompts that begin alike and arrive together are read once."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest
from phyla.engine.engine import Engine, EngineSpec, Loaded
from phyla.engine.scheduler import Job, Limits, PrefillPiece, Scheduler
from phyla.model.binding import Forward, LayerStates
from phyla.model.step import StepInput
from phyla.request import Request, SamplingParams, Started, Token
from phyla.testing.engines import EventLog, a_request, toy_spec
from phyla.testing.reuse import Seen, prompt_cache, reusing
from phyla.testing.row_equality import alone

GREEDY = SamplingParams(ignore_eos=True)
SYSTEM = tuple(3 + (index * 7 + index // 11) % 200 for index in range(300))
NUM_TOKENS = 3
kinds = pytest.mark.parametrize("layers", ["FF", "FS", "FR", "FL", "SRFL"])


def sessions(count: int, owner: str = "") -> list[Request]:
    """Requests with one system prompt and a question each."""
    return [
        a_request(f"chat-{index}", (*SYSTEM, 210 + index, 3, 4, 5), NUM_TOKENS, GREEDY, owner=owner)
        for index in range(count)
    ]


@contextmanager
def held(
    layers: str, chunk: int = 128, budget_bytes: int = 1 << 30
) -> Iterator[tuple[Engine, EventLog, Seen, threading.Event]]:
    """A reusing engine whose forwards wait for an event, so that requests can arrive together."""
    spec, gate = toy_spec(layers, {"prefill_chunk": chunk, "batch": 16}), threading.Event()
    with reusing(waiting_for(spec, gate), budget_bytes=budget_bytes) as (engine, log, seen):
        try:
            yield engine, log, seen, gate
        finally:
            gate.set()


def waiting_for(spec: EngineSpec, gate: threading.Event) -> EngineSpec:
    def load() -> Loaded:
        loaded = spec.load()
        start = loaded.binding.start

        def gated_start(step: StepInput, states: LayerStates) -> Forward:
            assert gate.wait(60)
            return start(step, states)

        loaded.binding.start = gated_start  # type: ignore[method-assign]
        return loaded

    return replace(spec, load=load)


def submit_together(engine: Engine, log: EventLog, gate: threading.Event, requests: Sequence[Request]) -> None:
    """All of them arrive while a step of another one is under way."""
    engine.submit(a_request("before", (250, 251), 1, GREEDY))
    for request in requests:
        engine.submit(request)
    gate.set()
    for request in requests:
        log.wait(request.request_id)


def num_cached(log: EventLog, requests: Sequence[Request]) -> list[int]:
    return [log.wait(one.request_id).finished.usage.num_cached_tokens for one in requests]


@kinds
def test_ten_sessions_read_their_common_system_prompt_once(layers: str) -> None:
    requests = sessions(10)
    with held(layers) as (engine, log, seen, gate):
        submit_together(engine, log, gate, requests)
    assert num_cached(log, requests) == [0, *[len(SYSTEM)] * 9]
    alone_before = 2
    assert seen.num_tokens == alone_before + len(SYSTEM) + 10 * (4 + NUM_TOKENS - 1)
    expected = alone(toy_spec(layers, {"prefill_chunk": 128, "batch": 1}), requests)
    assert {name: log.wait(name).ids for name in expected} == {name: one.ids for name, one in expected.items()}


def test_who_waits_starts_as_soon_as_the_common_part_is_there() -> None:
    short = a_request("short", (*SYSTEM, 210, 5), 1, GREEDY)
    long_one = a_request("long", (*SYSTEM, *range(3, 200)), 1, GREEDY)
    with held("FR", chunk=64) as (engine, log, _, gate):
        submit_together(engine, log, gate, [long_one, short])
    said = [(type(event), event.request_id) for event in log.events]
    assert said.index((Started, "long")) < said.index((Started, "short")) < said.index((Token, "long"))
    assert num_cached(log, [short]) == [len(SYSTEM)]


def test_a_cancelled_donor_lets_those_who_wait_go_on() -> None:
    donor, waiting = sessions(2)
    with held("FF") as (engine, log, _, gate):
        engine.submit(donor)
        engine.submit(waiting)
        engine.cancel(donor.request_id)
        gate.set()
        heard = log.wait(waiting.request_id)
    assert heard.finished.reason == "length"


def test_one_who_waits_can_be_cancelled() -> None:
    donor, waiting = sessions(2)
    with held("FF") as (engine, log, _, gate):
        engine.submit(donor)
        engine.submit(waiting)
        engine.cancel(waiting.request_id)
        gate.set()
        heard = [log.wait(one.request_id).finished.reason for one in (donor, waiting)]
    assert heard == ["length", "cancelled"]


def test_nobody_waits_in_vain_where_the_budget_keeps_nothing_so_long() -> None:
    requests = sessions(3)
    with held("FF", budget_bytes=1000) as (engine, log, _, gate):
        submit_together(engine, log, gate, requests)
        stats = prompt_cache(engine)
    assert num_cached(log, requests) == [0, 0, 0]
    assert stats["oversized"] > 0


def test_another_owners_prompt_is_not_waited_for() -> None:
    mine, (theirs,) = sessions(1, owner="one"), sessions(1, owner="two")
    theirs = replace(theirs, request_id="theirs")
    with held("FF") as (engine, log, _, gate):
        submit_together(engine, log, gate, [*mine, theirs])
    assert num_cached(log, [*mine, theirs]) == [0, 0]


def test_a_job_that_is_held_is_passed_by() -> None:
    scheduler = Scheduler(Limits(max_rows=2))
    for name in ("held", "free"):
        scheduler.enqueue(Job(name, num_prompt=4))
    admitted = scheduler.admit(lambda job: job.request_id == "held")
    assert admitted is not None
    assert admitted.request_id == "free"
    scheduler.resume("free", 0)
    assert scheduler.admit(lambda job: True) is None
    later = scheduler.admit()
    assert later is not None
    assert later.request_id == "held"
    scheduler.resume("held", 0)
    assert isinstance(scheduler.next_work(), PrefillPiece)
