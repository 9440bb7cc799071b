"""What the index says it holds is what is held, however many rows have come and gone."""

from __future__ import annotations

import gc

import mlx.core as mx
import pytest
from phyla.engine.engine import Engine
from phyla.request import SamplingParams
from phyla.testing.engines import EventLog, a_request, toy_spec
from phyla.testing.reuse import prompt_cache, reusing

GREEDY = SamplingParams(ignore_eos=True)
AT_ONCE = 4
LAYERS = "SRFL"


def held_bytes() -> int:
    gc.collect()
    return mx.get_active_memory()


def cycle(engine: Engine, log: EventLog, number: int) -> None:
    """Four rows that join together, leave at different times and are published, each at two lengths or more."""
    names = [f"{number}-{index}" for index in range(AT_ONCE)]
    for index, name in enumerate(names):
        start = [3 + (number >> shift) % 8 for shift in (0, 3, 6)]
        prompt = (*start, *range(20 + index, 60 + 3 * index))
        engine.submit(a_request(name, prompt, 2 + index, GREEDY, session_id=f"chat {number % 7}"))
    for name in names:
        log.wait(name)
    log.batches.clear()


@pytest.mark.parametrize("budget_bytes", [1 << 30, 1 << 20], ids=["everything kept", "most evicted"])
def test_memory_is_what_is_accounted_after_a_thousand_rows(budget_bytes: int) -> None:
    spec = toy_spec(LAYERS, {"prefill_chunk": 16, "batch": AT_ONCE})
    with reusing(spec, budget_bytes=budget_bytes) as (engine, log, _):
        cycle(engine, log, 0)
        engine.clear_prefix_cache()
        before = held_bytes()
        for number in range(1000 // AT_ONCE):
            cycle(engine, log, number)
        accounted = prompt_cache(engine)["bytes"]
        held = held_bytes() - before
        evictions = prompt_cache(engine)["evictions"]
    assert accounted <= budget_bytes
    assert (evictions > 0) == (budget_bytes == 1 << 20)
    assert abs(held - accounted) <= 0.01 * accounted


def test_an_entry_kept_alone_keeps_no_other_rows_bytes_alive() -> None:
    spec = toy_spec(LAYERS, {"prefill_chunk": 16, "batch": AT_ONCE})
    with reusing(spec, budget_bytes=150_000) as (engine, log, _):
        cycle(engine, log, 0)
        engine.clear_prefix_cache()
        before = held_bytes()
        for number in range(10):
            cycle(engine, log, number)
        stats = prompt_cache(engine)
        held = held_bytes() - before
    assert stats["entries"] == 1
    assert abs(held - stats["bytes"]) <= 0.01 * stats["bytes"]
