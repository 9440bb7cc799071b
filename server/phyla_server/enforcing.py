"""Compiling constraints in threads of their own, so that a hard one delays neither prompts nor tokens."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from phyla.draft.compiling import NO_ENGINE, ConstraintCompiler, Enforced
from phyla.errors import ConstraintError, QueueFull

from phyla_server.asked import AskedConstraint

NUM_THREADS = 4
MAX_WAITING = 64


class Enforcing:
    """A small pool with a bounded queue."""

    def __init__(self, compiler: ConstraintCompiler | None) -> None:
        self._compiler = compiler
        self._pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="phyla-grammar")
        self._num_pending = 0

    async def compile(self, asked: AskedConstraint) -> Enforced:
        """The compiled constraint, to be held until its request has ended.

        Raises:
            ConstraintError: it can't be enforced.
            QueueFull: too many are being compiled.
        """
        if self._compiler is None:
            raise ConstraintError(NO_ENGINE)
        if self._num_pending >= NUM_THREADS + MAX_WAITING:
            raise QueueFull(f"{MAX_WAITING} schemas are already waiting to be compiled. Try again later.")
        self._num_pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, self._compiler.compile, asked.spec)
        finally:
            self._num_pending -= 1

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
