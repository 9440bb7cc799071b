"""Rendering templates in processes that are killed when they take too long.

A thread can't be stopped, and a template can loop, or raise a number to a power, for ever: only a process can be ended.
A call costs some tenths of a millisecond.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from queue import Empty, LifoQueue
from threading import BoundedSemaphore
from typing import Any

from phyla.backend.killable import KillableWorker, WorkerFailed, WorkerSaysTooMuch, WorkerTookTooLong
from phyla.errors import TemplateError

_WORKER = "phyla.tokenizer.template_worker"
_MAX_BYTES_PER_CHAR = 12
"""The worst that JSON makes of one character: two escaped surrogates."""


@dataclass(frozen=True)
class TemplateLimits:
    """What one rendering may take."""

    seconds: float = 5.0
    max_chars: int = 16 * 1024 * 1024
    memory_bytes: int = 1024 * 1024 * 1024
    """Address space of the worker, where the system enforces it; 0 is unlimited."""


@dataclass(frozen=True)
class RenderedText:
    """The outcome for one context: a text, or why there is none."""

    text: str | None
    error: str | None = None


class TemplateSandbox:
    """A few worker processes for one template. Thread-safe; a worker starts when it is first needed."""

    def __init__(self, template: str, limits: TemplateLimits | None = None, num_workers: int = 2) -> None:
        self._template = template
        self._limits = limits if limits is not None else TemplateLimits()
        self._num_workers = num_workers
        self._idle: LifoQueue[KillableWorker] = LifoQueue()
        self._seats = BoundedSemaphore(num_workers)
        self._finalizer = weakref.finalize(self, _close_all, self._idle)

    def render(self, contexts: Sequence[Mapping[str, Any]]) -> list[RenderedText]:
        """Render the template once per context, all under one deadline.

        Raises:
            TemplateError: the template isn't valid, or all of it took longer than the limit.
        """
        with self._seats:
            return self._rendered(self._take(), contexts)

    def warm_up(self, context: Mapping[str, Any]) -> None:
        """Start every worker and render once in each, so that no request waits for it. Complaints are left to those."""
        with contextlib.ExitStack() as seats:
            workers: list[KillableWorker] = []
            for _ in range(self._num_workers):
                seats.enter_context(self._seats)
                with contextlib.suppress(TemplateError):
                    workers.append(self._take())
            for worker in workers:
                with contextlib.suppress(TemplateError):
                    self._rendered(worker, [context])

    def close(self) -> None:
        """End the idle workers. Safe to call twice."""
        _close_all(self._idle)

    def _rendered(self, worker: KillableWorker, contexts: Sequence[Mapping[str, Any]]) -> list[RenderedText]:
        """What this worker makes of them; it is idle afterwards, or dead."""
        request = {
            "template": self._template,
            "contexts": list(contexts),
            "max_chars": self._limits.max_chars,
            "memory_bytes": self._limits.memory_bytes,
            "cpu_seconds": self._limits.seconds,
        }
        max_bytes = (self._limits.max_chars * len(contexts)) * _MAX_BYTES_PER_CHAR + 4096
        try:
            answer = worker.ask(request, self._limits.seconds, max_bytes)
        except BaseException as error:
            worker.kill()
            if isinstance(error, WorkerFailed):
                raise TemplateError(_blame(error)) from error
            raise
        self._idle.put(worker)
        if "error" in answer:
            raise TemplateError(f"The chat template can't be used: {answer['error']}")
        return [RenderedText(result.get("text"), result.get("error")) for result in answer["results"]]

    def _take(self) -> KillableWorker:
        with contextlib.suppress(Empty):
            return self._idle.get_nowait()
        try:
            return KillableWorker(_WORKER)
        except WorkerFailed as error:
            raise TemplateError("The process that renders chat templates doesn't start.") from error


def _blame(error: WorkerFailed) -> str:
    if isinstance(error, WorkerTookTooLong):
        return "The chat template took too long and was ended."
    if isinstance(error, WorkerSaysTooMuch):
        return "The chat template writes more than a prompt may hold."
    return "The chat template used up its memory or time and was ended."


def _close_all(idle: LifoQueue[KillableWorker]) -> None:
    while True:
        try:
            idle.get_nowait().kill()
        except Empty:
            return
