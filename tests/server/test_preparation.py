"""Who waits for whom while prompts are prepared."""

from __future__ import annotations

import asyncio
import threading

import pytest
from phyla.errors import QueueFull
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
