"""Work that mustn't take the processor from the engine."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from queue import SimpleQueue
from typing import TypeVar

Result = TypeVar("Result")

BACKGROUND_NICE = 12
"""A busy thread of the engine gets some fifteen times the share of a core that one at this priority gets."""

LAST_NICE = 19
"""Some seventy times. Two threads at 12 made a step of two busy cores half as long again, at 19 a twentieth."""

QUICK_SECONDS = 0.05
"""What takes longer than this is nobody's usual work, and goes last."""


def in_background(
    work: Callable[[], Result], *, quick_seconds: float = QUICK_SECONDS, is_waited_for: bool = True
) -> Result:
    """Do `work` on a thread of its own that gives way to others, where the system lets a thread; wait for it.

    Args:
        work: what to do.
        quick_seconds: of it after which the thread goes last.
        is_waited_for: others in this process may wait for what the thread holds, the interpreter above all: it then
            keeps a small share of a busy core. Otherwise it goes on where a core would idle.

    Raises:
        Exception: what `work` raised.
    """
    begun: SimpleQueue[int] = SimpleQueue()

    def begin() -> None:
        task = threading.get_native_id()
        _lower_thread(task, BACKGROUND_NICE)
        begun.put(task)

    with ThreadPoolExecutor(1, thread_name_prefix="phyla-background", initializer=begin) as pool:
        done = pool.submit(work)
        if not wait([done], quick_seconds).done:
            task = begun.get()
            _lower_thread(task, LAST_NICE)
            if not is_waited_for:
                _idle(task)
        return done.result()


def give_way() -> None:
    """Let this whole process go after others. Safe to call twice."""
    _lower(0, BACKGROUND_NICE)


def _lower_thread(task: int, nice: int) -> None:
    # On Linux a thread has a priority of its own; threads that it starts begin with the same.
    if sys.platform == "linux":
        _lower(task, nice)


def _idle(task: int) -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.sched_setscheduler(task, os.SCHED_IDLE, os.sched_param(0))


def _lower(task: int, nice: int) -> None:
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, task, max(nice, os.getpriority(os.PRIO_PROCESS, task)))
