"""Trying a constraint out in a process that is killed when it takes too long or too much memory."""

from __future__ import annotations

import contextlib
import signal
import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from queue import Empty, LifoQueue
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Any

from phyla.backend.background import in_background
from phyla.backend.killable import KillableWorker, WorkerDied, WorkerFailed, WorkerTookTooLong
from phyla.draft.blaming import costliest
from phyla.draft.looking import is_long
from phyla.errors import ConstraintError, ConstraintUntried
from phyla.kv.scheme import SUPPORTED, Support, refused

if TYPE_CHECKING:
    from phyla.draft.constraint import Trial
    from phyla.draft.vocabulary import Vocabulary
    from phyla.request import ConstraintSpec

WORKER = "phyla.draft.trial_worker"
NUM_WORKERS = 4
PATIENCE = 8
"""Seconds that may pass for each second of computing that a trial may take: a busy machine makes no schema worse."""

PREPARE_SECONDS = 180.0
"""Until a process has imported a grammar library, which takes seconds of computing and gives way to others."""

MAX_ANSWER_BYTES = 1 << 16

Name = tuple[str, str]
"""Of a function: its module's and its own."""


class _Ended(ConstraintError):
    """Trying it took its process down."""


class _Unfinished(ConstraintUntried):
    """Trying it took longer than anybody waits."""


@dataclass(frozen=True)
class TrialLimits:
    """What one trial may take."""

    seconds: float = 5.0
    """Of computing."""

    memory_bytes: int = 1 << 30


@dataclass(frozen=True)
class _Worker:
    process: KillableWorker
    ready_for: set[Name] = field(default_factory=set)
    """Trials that were prepared in it."""


class Trials:
    """A few worker processes. Thread-safe; one starts when it is first needed."""

    def __init__(
        self, limits: TrialLimits, vocabulary: Callable[[], Vocabulary], num_workers: int = NUM_WORKERS
    ) -> None:
        """With these limits for each trial.

        Args:
            limits: what a trial may take.
            vocabulary: that trials are prepared with; called when the first one is.
            num_workers: trials that may be under way at once.
        """
        self._limits = limits
        self._read_vocabulary = vocabulary
        self._idle: LifoQueue[_Worker] = LifoQueue()
        self._seats = BoundedSemaphore(num_workers)
        self._finalizer = weakref.finalize(self, _close_all, self._idle)

    def run(self, prepare: Callable[[Vocabulary], Trial], spec: ConstraintSpec) -> float:
        """The seconds that it computed, if the constraint may be compiled here.

        Args:
            prepare: gives the trial; found again by its name in the process.
            spec: what to try.

        Raises:
            ConstraintError: what the trial said against it, or that it computed too long, grew or crashed.
            ConstraintUntried: it came to no end, maybe for reasons of this machine's.
        """
        name = _name_of(prepare)
        try:
            return float(self._answer({"trial": name, **self._bounds(spec)}, prepared=name)["seconds"])
        except _Unfinished as error:
            raise ConstraintUntried(f"{error}{_likely('' if is_long(spec) else costliest(spec))}") from error
        except _Ended as error:
            raise ConstraintError(f"{error}{_likely(self._costliest(spec))}") from error

    def look_over(
        self, supports: Callable[[ConstraintSpec], Support], spec: ConstraintSpec, max_nesting: int
    ) -> Support:
        """As `phyla.draft.looking.look_over`, under a trial's limits.

        Args:
            supports: found again by its name in the process.
            spec: what to look over.
            max_nesting: the deepest that it may be nested.

        Raises:
            ConstraintError: looking it over took too long, grew or crashed.
            ConstraintUntried: it came to no end, maybe for reasons of this machine's.
        """
        question = {"supports": _name_of(supports), "max_nesting": max_nesting, **self._bounds(spec)}
        reason = self._answer(question)["reason"]
        return SUPPORTED if reason is None else refused(reason)

    def _costliest(self, spec: ConstraintSpec) -> str:
        if not is_long(spec):
            return costliest(spec)
        with contextlib.suppress(ConstraintError):
            return str(self._answer({"costliest": True, **self._bounds(spec)})["costliest"])
        return ""

    def _bounds(self, spec: ConstraintSpec) -> dict[str, Any]:
        return {
            "spec": asdict(spec),
            "memory_bytes": self._limits.memory_bytes,
            "seconds": self._limits.seconds,
        }

    def _answer(self, question: Mapping[str, Any], prepared: Name | None = None) -> dict[str, Any]:
        with self._seats:
            worker = self._take()
            try:
                answer = {} if prepared is None else self._prepared(worker, prepared)
                if "error" not in answer:
                    answer = worker.process.ask(question, PATIENCE * self._limits.seconds, MAX_ANSWER_BYTES)
            except BaseException as error:
                worker.process.kill()
                if isinstance(error, WorkerTookTooLong):
                    # Time that passed may be the machine's doing; time that was computed is the constraint's.
                    raise _Unfinished(
                        f"Compiling it came to no end within {PATIENCE * self._limits.seconds:g} seconds. "
                        f"Make it simpler, or try again if this machine is busy."
                    ) from error
                if isinstance(error, WorkerFailed):
                    raise _Ended(self._blame(worker.process, error)) from error
                raise
            self._idle.put(worker)
        if "error" in answer:
            raise ConstraintError(answer["error"])
        return answer

    def close(self) -> None:
        """End the idle workers. Safe to call twice."""
        _close_all(self._idle)

    def _prepared(self, worker: _Worker, name: Name) -> dict[str, Any]:
        """Have the trial made ready, if it isn't; not within its time. What was wrong with that, or nothing."""
        if name in worker.ready_for:
            return {}
        prepare = {"prepare": name, "vocabulary": self._vocabulary}
        try:
            answer = worker.process.ask(prepare, PREPARE_SECONDS, MAX_ANSWER_BYTES)
        except WorkerFailed as error:
            raise ConstraintUntried("The process that tries out constraints doesn't get ready. Try again.") from error
        if "error" not in answer:
            worker.ready_for.add(name)
        return answer

    @cached_property
    def _vocabulary(self) -> dict[str, Any]:
        return self._read_vocabulary().to_json()

    def _take(self) -> _Worker:
        with contextlib.suppress(Empty):
            return self._idle.get_nowait()
        try:
            # From such a thread the process goes after others from its first moment on.
            return _Worker(in_background(lambda: KillableWorker(WORKER)))
        except WorkerFailed as error:
            raise ConstraintUntried("The process that tries out constraints doesn't start.") from error

    def _blame(self, worker: KillableWorker, error: WorkerFailed) -> str:
        if worker.exit_status == -signal.SIGPROF:
            return f"It takes more than {self._limits.seconds:g} seconds to compile. Make it simpler."
        if isinstance(error, WorkerDied):
            return "Compiling it used up its memory or crashed the compiler. Make it simpler."
        return "The process that tries out constraints answered nonsense."


def _likely(keywords: str) -> str:
    return f" What costs most is likely {keywords}." if keywords else ""


def _name_of(function: Callable[..., object]) -> Name:
    return function.__module__, function.__qualname__


def _close_all(idle: LifoQueue[_Worker]) -> None:
    while True:
        try:
            idle.get_nowait().process.kill()
        except Empty:
            return
