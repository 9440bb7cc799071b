"""The engine's front: a thread that owns all MLX work, and thread-safe ways to talk to it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from phyla.engine.chunks import COMPANY_CHUNK
from phyla.engine.front import EngineHealth, EventSink, Shutdown
from phyla.engine.loop import EngineLoop
from phyla.engine.mailbox import Mailbox
from phyla.engine.pace import Pace
from phyla.engine.proposing import Proposing, ProposingOptions
from phyla.engine.records import EngineStarted, Record
from phyla.engine.runner import Runner, RunnerOptions
from phyla.engine.scheduler import Limits, Scheduler
from phyla.engine.services import OpenConstraint, Services, no_constraints
from phyla.engine.settings import EngineSettings
from phyla.engine.stats import Counted, engine_stats
from phyla.engine.trace import TraceSettings, open_trace
from phyla.errors import EngineStopped
from phyla.kv.layer_spec import RECURRENT
from phyla.request import EngineEvent, Failed, Request

if TYPE_CHECKING:
    from phyla.engine.admission import Admission
    from phyla.engine.drafting import Drafting
    from phyla.engine.fast_route import FastRoute
    from phyla.engine.reuse import PrefixReuse
    from phyla.kv.row_state import RowState
    from phyla.model.binding import ModelBinding
    from phyla.model.facts import ModelFacts
    from phyla.plan import RouteOption
    from phyla.sampling.declaration import NamedSampler
    from phyla.tokenizer import Tokenizer

CLOSE_GRACE_SECONDS = 10.0
"""What cancelled rows get to end in once a drain has timed out."""

LOADING_WAIT_SECONDS = 1.0
"""After so long a start looks whether it was interrupted."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Loaded:
    """What loading gives; made and used on the engine thread."""

    binding: ModelBinding
    reuse: PrefixReuse
    drafting: Drafting | None = None
    probe_state: Callable[[], RowState] | None = None
    """An empty row to measure prefill with; None measures as requests come."""


def nobody_listens(record: Record) -> None:
    """Drops the record."""


@dataclass(frozen=True)
class EngineSpec:
    """What an engine is made from."""

    model_id: str
    facts: ModelFacts
    tokenizer: Tokenizer
    admission: Admission
    load: Callable[[], Loaded]
    """Called on the engine thread."""

    settings: EngineSettings = field(default_factory=EngineSettings)
    trace: TraceSettings = field(default_factory=TraceSettings)
    route: RouteOption = "auto"
    fast: FastRoute | None = None
    """How shared steps compute; None: the plainest way."""

    samplers: Sequence[NamedSampler] = ()
    open_constraint: OpenConstraint = no_constraints
    proposing: ProposingOptions = field(default_factory=ProposingOptions)
    tell: Callable[[Record], None] = nobody_listens
    """Takes records for listeners; must return at once."""

    now: Callable[[], float] = time.monotonic


class Engine:
    """An `EngineFront` over a thread of this process."""

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self._mailbox = Mailbox(spec.settings.queue)
        self._sinks: tuple[EventSink, ...] = ()
        self._lock = threading.Lock()
        self._loop: EngineLoop | None = None
        self._loaded: Loaded | None = None
        self._load_error: BaseException | None = None
        self._is_loaded = threading.Event()
        self._busy_since: float | None = None
        self._death: str | None = None
        self._thread = threading.Thread(target=self._run, name="phyla-engine", daemon=True)

    def start(self) -> None:
        """Load the model and take requests.

        Raises:
            Exception: what loading raised, here in the caller.
        """
        try:
            self._thread.start()
            # In pieces: a signal that comes just before a wait begins doesn't end it, and Ctrl-C would be lost.
            while not self._is_loaded.wait(LOADING_WAIT_SECONDS):
                pass
        except BaseException:
            # Ctrl-C: a process that ends under a thread which is inside MLX is aborted by its runtime.
            self.close(0.0)
            raise
        if self._load_error is not None:
            self._thread.join()
            raise self._load_error

    def subscribe(self, sink: EventSink) -> Callable[[], None]:
        with self._lock:
            self._sinks = (*self._sinks, sink)

        def unsubscribe() -> None:
            with self._lock:
                self._sinks = tuple(one for one in self._sinks if one is not sink)

        return unsubscribe

    def recognised(self, request: Request) -> Request:
        loaded = self._loaded
        return request if loaded is None else loaded.reuse.recognised(request)

    def submit(self, request: Request, *, wake: bool = True) -> None:
        self._mailbox.post(self._spec.admission.checked(request), wake=wake)

    def wake(self) -> None:
        self._mailbox.wake()

    def cancel(self, request_id: str) -> None:
        self._mailbox.cancel(request_id)

    def health(self) -> EngineHealth:
        """Also notices a stuck engine: from then on it counts as dead."""
        waited = self._seconds_without_progress()
        if self._death is None and waited > self._spec.settings.stuck_seconds:
            self._die(
                f"The engine is stuck: one step has taken more than {self._spec.settings.stuck_seconds:g} seconds."
            )
        reason = self._death
        if reason is None and self._loop is None:
            reason = "The engine has shut down." if self._is_loaded.is_set() else "The model is being loaded."
        num_waiting = self._mailbox.num_waiting
        num_active = self._mailbox.num_known - num_waiting
        return EngineHealth(reason is None, reason, num_active, num_waiting, waited)

    def stats(self) -> Mapping[str, Any]:
        loop, loaded = self._loop, self._loaded
        if loop is None or loaded is None:
            return {}
        name = self._proposing(loaded).name
        counted = Counted(loop.counters, loop.compiled_counts, loop.ahead_counts, self._mailbox.num_waiting)
        return engine_stats(self._spec, counted, loaded.reuse.stats(), name)

    def clear_prefix_cache(self) -> Mapping[str, Any]:
        dropped: Mapping[str, Any] = self._called(self._running().reuse.clear)
        return dropped

    def close_session(self, session_id: str, owner: str = "") -> bool:
        reuse = self._running().reuse
        return bool(self._called(lambda: reuse.close_session(session_id, owner)))

    def close(self, timeout_seconds: float) -> Shutdown:
        self._mailbox.close("The engine is shutting down.")
        if not self._thread.is_alive():
            return Shutdown(drained=self._death is None, timed_out=False)
        drained = self._mailbox.drained(timeout_seconds)
        num_cancelled = 0 if drained else self._mailbox.cancel_all()
        if not drained:
            self._mailbox.drained(CLOSE_GRACE_SECONDS)
        self._mailbox.stop()
        self._thread.join(CLOSE_GRACE_SECONDS)
        is_stuck = self._thread.is_alive()
        if is_stuck:
            self._die("The engine is stuck and didn't end when it was closed.")
        return Shutdown(drained, not drained, num_cancelled, is_stuck)

    def _running(self) -> Loaded:
        if self._death is not None or self._loaded is None:
            raise EngineStopped(self._death or "The model isn't loaded.")
        return self._loaded

    def _called(self, work: Callable[[], Any]) -> Any:
        """Have the engine thread do something between two steps, and wait for it."""
        try:
            return self._mailbox.call(work).result()
        except CancelledError as error:
            raise EngineStopped(self._death or "The engine has shut down.") from error

    def _run(self) -> None:
        """The engine thread."""
        try:
            loop = self._prepare()
        except BaseException as error:
            self._load_error = error
            self._mailbox.close("The model couldn't be loaded.")
            self._is_loaded.set()
            return
        self._is_loaded.set()
        try:
            self._serve(loop)
        except BaseException as error:
            self._busy_since = None
            _log.exception("The engine thread died.")
            self._die(f"The engine died of an internal error ({type(error).__name__}).")
        finally:
            # Weights and caches go with the thread that owned them.
            self._loop = self._loaded = None
            loop.close()

    def _prepare(self) -> EngineLoop:
        began = self._spec.now()
        loaded = self._spec.load()
        self._loaded = loaded
        self._loop = self._make_loop(loaded)
        facts = self._spec.facts
        seconds = self._spec.now() - began
        self._spec.tell(EngineStarted(self._spec.model_id, facts.family, seconds, facts.weight_bytes.total))
        return self._loop

    def _serve(self, loop: EngineLoop) -> None:
        while self._death is None:
            self._busy_since = self._spec.now()
            has_worked = loop.iterate()
            self._busy_since = None
            if not has_worked:
                if self._mailbox.is_stopping:
                    return
                self._mailbox.wait()

    def _make_loop(self, loaded: Loaded) -> EngineLoop:
        spec, settings = self._spec, self._spec.settings
        limits = Limits(
            max_rows=settings.batch,
            max_waiting=settings.queue,
            num_layers=len(spec.facts.layout),
            step_seconds=settings.step_ms / 1000,
            route=spec.route,
            kv_budget_bytes=settings.kv_budget,
        )
        services = Services(
            facts=spec.facts,
            tokenizer=spec.tokenizer,
            admission=spec.admission,
            reuse=loaded.reuse,
            samplers=spec.samplers,
            eos_ids=frozenset(spec.facts.eos_ids) | spec.tokenizer.eos_ids,
            is_solo=self._is_solo,
            chunk_tokens=spec.admission.fit.chunk_tokens,
            emit=self._emit,
            tell=self._spec.tell,
            now=spec.now,
            trace=open_trace(spec.trace, spec.now),
            open_constraint=spec.open_constraint,
            proposing=self._proposing(loaded),
        )
        options = RunnerOptions(
            early_first_token=settings.early_first_token,
            no_pipeline=settings.no_pipeline,
            vectorised_sampling=settings.vectorised_sampling,
            group=settings.group,
            most_rows=settings.batch,
            fast=spec.fast,
            sync_first_token=spec.trace.sync,
            memory_limit_bytes=settings.memory_budget,
        )
        runner = Runner(loaded.binding, options, services.trace, services.proposing)
        return EngineLoop(Scheduler(limits, self._probed(loaded, runner)), runner, self._mailbox, services)

    def _proposing(self, loaded: Loaded) -> Proposing:
        return Proposing(loaded.drafting, self._spec.proposing)

    def _probed(self, loaded: Loaded, runner: Runner) -> Pace:
        """What prefill costs here, so that the first prompt already meets running rows in pieces that fit."""
        pace = Pace()
        if loaded.probe_state is not None:
            seconds = runner.probe(loaded.probe_state(), COMPANY_CHUNK)
            pace.prefilled(COMPANY_CHUNK, len(self._spec.facts.layout), seconds)
        return pace

    def _is_solo(self, request: Request) -> bool:
        settings = self._spec.settings
        if request.levers.get("placement") == "solo":
            return True
        if request.constraint is not None and not settings.batch_grammar:
            return True
        return not settings.batch_recurrent and any(layer.kind == RECURRENT for layer in self._spec.facts.layout)

    def _emit(self, events: Sequence[EngineEvent]) -> None:
        if self._death is not None:
            return
        for sink in self._sinks:
            try:
                sink(events)
            except Exception:
                _log.exception("An event sink failed; decoding goes on.")

    def _seconds_without_progress(self) -> float:
        busy_since = self._busy_since
        return 0.0 if busy_since is None else self._spec.now() - busy_since

    def _die(self, reason: str) -> None:
        """Refuse everything from now on, and let everybody who waits know. The first reason stays."""
        with self._lock:
            if self._death is not None:
                return
            sinks, self._sinks = self._sinks, ()
            self._death = reason
        self._mailbox.close(reason)
        self._mailbox.stop()
        left = self._mailbox.abandon()
        events = [
            Failed(request_id, reason, EngineStopped.__name__, sample)
            for request_id, num_samples in left.items()
            for sample in range(num_samples)
        ]
        for sink in sinks if events else ():
            try:
                sink(events)
            except Exception:
                _log.exception("An event sink failed while the engine went down.")
