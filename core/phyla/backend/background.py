"""Work that mustn't take the processor from the engine."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")

BACKGROUND_NICE = 12
"""A busy thread of the engine gets some fifteen times the share of a core that one at this priority gets."""


def in_background(work: Callable[[], Result]) -> Result:
    """Do `work` on a thread of its own that gives way to others, where the system lets a thread; wait for it.

    Raises:
        Exception: what `work` raised.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="phyla-background", initializer=_let_others_go_first) as pool:
        return pool.submit(work).result()


def give_way() -> None:
    """Let this whole process go after others. Safe to call twice."""
    _lower(0)


def _let_others_go_first() -> None:
    # On Linux a thread has a priority of its own; threads that it starts begin with the same.
    if sys.platform == "linux":
        _lower(threading.get_native_id())


def _lower(task: int) -> None:
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, task, max(BACKGROUND_NICE, os.getpriority(os.PRIO_PROCESS, task)))
