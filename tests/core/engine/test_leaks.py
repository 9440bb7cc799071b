"""What many requests leave behind: nothing."""

from __future__ import annotations

import gc
import threading

import mlx.core as mx
from phyla.testing.engines import a_request, running, toy_spec

NUM_REQUESTS = 300


def test_memory_is_flat_over_many_requests_and_gone_with_the_engine() -> None:
    gc.collect()
    before = mx.get_active_memory()
    with running(toy_spec("FSRL")) as (engine, log):
        serve(engine, log, "warm", 40)
        after_warm_up = mx.get_active_memory()
        serve(engine, log, "many", NUM_REQUESTS)
        assert mx.get_active_memory() <= after_warm_up * 1.05
        assert engine.stats()["batch"]["active_rows"] == 0
    gc.collect()
    assert mx.get_active_memory() <= before


def test_no_thread_is_left() -> None:
    before = set(threading.enumerate())
    with running(toy_spec("F")) as (engine, log):
        serve(engine, log, "a", 4)
    assert set(threading.enumerate()) == before


def serve(engine: object, log: object, name: str, count: int) -> None:
    """Batches of eight, of different lengths, every fifth one cancelled."""
    for start in range(0, count, 8):
        names = [f"{name}-{index}" for index in range(start, min(start + 8, count))]
        for index, one in enumerate(names):
            engine.submit(a_request(one, range(1, 4 + 3 * index), 6))  # type: ignore[attr-defined]
        for one in names[::5]:
            engine.cancel(one)  # type: ignore[attr-defined]
        for one in names:
            log.wait(one)  # type: ignore[attr-defined]
