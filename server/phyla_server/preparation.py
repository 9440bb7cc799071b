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
LARGE_BYTES = 256 * 1024
"""Bodies from here on take long enough to be felt by those behind them."""

MAX_LARGE_WAITING = 8
"""Each holds its whole body."""


class Preparation:
    """Two lanes with bounded queues: large bodies go one after the other, and never before a small one."""

    def __init__(self) -> None:
        self._small = _Lane(NUM_THREADS, MAX_WAITING)
        self._large = _Lane(1, MAX_LARGE_WAITING)

    async def run(self, work: Callable[[], ResultT], num_bytes: int = 0) -> ResultT:
        """`work()` in a thread.

        Args:
            work: done once a thread is free.
            num_bytes: of the body it is about.

        Raises:
            QueueFull: too much is waiting already.
        """
        return await (self._small if num_bytes < LARGE_BYTES else self._large).run(work)

    def close(self) -> None:
        self._small.close()
        self._large.close()


class _Lane:
    """A small pool with a bounded queue."""

    def __init__(self, num_threads: int, max_waiting: int) -> None:
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="phyla-prepare")
        self._most_pending = num_threads + max_waiting
        self._num_pending = 0

    async def run(self, work: Callable[[], ResultT]) -> ResultT:
        if self._num_pending >= self._most_pending:
            raise QueueFull(f"{self._num_pending} prompts are already waiting to be prepared. Try again later.")
        self._num_pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            self._num_pending -= 1

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
