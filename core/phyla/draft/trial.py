"""Trying a constraint out in a process that is killed when it takes too long or too much memory."""

from __future__ import annotations

import contextlib
import signal
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, LifoQueue
from threading import BoundedSemaphore
from typing import TYPE_CHECKING

from phyla.backend.killable import READY_SECONDS, KillableWorker, WorkerDied, WorkerFailed, WorkerTookTooLong
from phyla.errors import ConstraintError

if TYPE_CHECKING:
    from phyla.request import ConstraintSpec

WORKER = "phyla.draft.trial_worker"
NUM_WORKERS = 4
PATIENCE = 4
"""Seconds that may pass for each second of computing that a trial may take: a busy machine makes no schema worse."""

MAX_ANSWER_BYTES = 1 << 16


@dataclass(frozen=True)
class TrialLimits:
    """What one trial may take."""

    seconds: float = 5.0
    """Of computing."""

    memory_bytes: int = 1 << 30


class Trials:
    """A few worker processes. Thread-safe; one starts when it is first needed."""

    def __init__(self, limits: TrialLimits, num_workers: int = NUM_WORKERS) -> None:
        self._limits = limits
        self._idle: LifoQueue[KillableWorker] = LifoQueue()
        self._seats = BoundedSemaphore(num_workers)
        self._finalizer = weakref.finalize(self, _close_all, self._idle)

    def run(self, trial: Callable[[str, str], None], spec: ConstraintSpec, imports: Sequence[str] = ()) -> None:
        """Returns if the constraint may be compiled here.

        Args:
            trial: found again by its name in the process.
            spec: what to try.
            imports: modules to have there before time is taken.

        Raises:
            ConstraintError: what the trial said against it, or that it hung, grew or crashed.
        """
        question = {
            "trial": [trial.__module__, trial.__qualname__],
            "kind": spec.kind,
            "source": spec.source,
            "memory_bytes": self._limits.memory_bytes,
            "seconds": self._limits.seconds,
        }
        with self._seats:
            worker = self._take()
            try:
                # What a compiler needs to be imported isn't the constraint's to pay.
                worker.ask({"import": [trial.__module__, *imports]}, READY_SECONDS, MAX_ANSWER_BYTES)
                answer = worker.ask(question, PATIENCE * self._limits.seconds, MAX_ANSWER_BYTES)
            except BaseException as error:
                worker.kill()
                if isinstance(error, WorkerFailed):
                    raise ConstraintError(self._blame(worker, error)) from error
                raise
            self._idle.put(worker)
        if "error" in answer:
            raise ConstraintError(answer["error"])

    def close(self) -> None:
        """End the idle workers. Safe to call twice."""
        _close_all(self._idle)

    def _take(self) -> KillableWorker:
        with contextlib.suppress(Empty):
            return self._idle.get_nowait()
        try:
            return KillableWorker(WORKER)
        except WorkerFailed as error:
            raise ConstraintError("The process that tries out constraints doesn't start.") from error

    def _blame(self, worker: KillableWorker, error: WorkerFailed) -> str:
        if isinstance(error, WorkerTookTooLong) or worker.exit_status == -signal.SIGPROF:
            return f"It takes more than {self._limits.seconds:g} seconds to compile. Make it simpler."
        if isinstance(error, WorkerDied):
            return "Compiling it used up its memory or crashed the compiler. Make it simpler."
        return "The process that tries out constraints answered nonsense."


def _close_all(idle: LifoQueue[KillableWorker]) -> None:
    while True:
        try:
            idle.get_nowait().kill()
        except Empty:
            return
