"""Parsing, templating and tokenising in a few threads, so that the event loop never waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from phyla.errors import QueueFull

ResultT = TypeVar("ResultT")

NUM_THREADS = 2
MAX_WAITING = 64


class Preparation:
    """A small pool with a bounded queue."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="phyla-prepare")
        self._num_pending = 0

    async def run(self, work: Callable[[], ResultT]) -> ResultT:
        """`work()` in the pool.

        Raises:
            QueueFull: too much is waiting already.
        """
        if self._num_pending >= NUM_THREADS + MAX_WAITING:
            raise QueueFull(f"{MAX_WAITING} prompts are already waiting to be prepared. Try again later.")
        self._num_pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            self._num_pending -= 1

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
