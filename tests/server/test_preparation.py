"""Who waits for whom while prompts are prepared."""

from __future__ import annotations

import asyncio
import threading

import pytest
from phyla.errors import QueueFull
from phyla_server.body import ClientGone
from phyla_server.leaving import unless_gone
from phyla_server.preparation import LARGE_BYTES, MAX_LARGE_WAITING, MAX_WAITING, NUM_THREADS, Preparation


@pytest.fixture
def preparation():
    preparation = Preparation()
    yield preparation
    preparation.close()


def test_small_prompts_pass_any_number_of_large_ones(preparation):
    may_end = threading.Event()

    async def many():
        large = [asyncio.create_task(preparation.run(may_end.wait, LARGE_BYTES)) for _ in range(5)]
        small = [await preparation.run(lambda: "passed", LARGE_BYTES - 1) for _ in range(3)]
        may_end.set()
        return small, await asyncio.gather(*large)

    assert asyncio.run(many()) == (["passed"] * 3, [True] * 5)


@pytest.mark.parametrize(
    ("num_bytes", "num_taken"), [(0, NUM_THREADS + MAX_WAITING), (LARGE_BYTES, 1 + MAX_LARGE_WAITING)]
)
def test_one_more_than_a_lane_holds_is_refused(preparation, num_bytes, num_taken):
    may_end = threading.Event()

    async def too_many():
        taken = [asyncio.create_task(preparation.run(may_end.wait, num_bytes)) for _ in range(num_taken)]
        await asyncio.sleep(0)
        try:
            with pytest.raises(QueueFull):
                await preparation.run(may_end.wait, num_bytes)
        finally:
            may_end.set()
            await asyncio.gather(*taken)

    asyncio.run(too_many())


def test_a_client_that_leaves_while_its_prompt_waits_is_never_prepared(preparation):
    may_end, prepared = threading.Event(), []

    async def gone():
        return {"type": "http.disconnect"}

    async def leave():
        busy = [asyncio.create_task(preparation.run(may_end.wait)) for _ in range(NUM_THREADS)]
        await asyncio.sleep(0)
        with pytest.raises(ClientGone):
            await unless_gone(preparation.run(lambda: prepared.append("it")), gone)
        may_end.set()
        await asyncio.gather(*busy)
        return await preparation.run(lambda: list(prepared))

    assert asyncio.run(leave()) == []


def test_a_client_that_stays_gets_what_was_prepared_or_its_error(preparation):
    async def silence():
        await asyncio.Event().wait()

    async def stay(work):
        return await unless_gone(preparation.run(work), silence)

    assert asyncio.run(stay(lambda: "ready")) == "ready"
    with pytest.raises(ZeroDivisionError):
        asyncio.run(stay(lambda: 1 // 0))
