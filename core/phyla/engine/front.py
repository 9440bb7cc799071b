"""How the rest of the program talks to the engine thread: plain messages in, batches of events out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from phyla.request import EngineEvent, Request

EventSink = Callable[[Sequence[EngineEvent]], None]
"""Called on the engine thread, once per step with the events of all rows. Must not block; schedule and return."""


@dataclass(frozen=True)
class EngineHealth:
    """Whether requests can be served, and if not why."""

    ok: bool
    reason: str | None = None
    num_active: int = 0
    num_waiting: int = 0
    seconds_since_progress: float = 0.0


@dataclass(frozen=True)
class Shutdown:
    """How a close went."""

    drained: bool
    timed_out: bool
    num_cancelled: int = 0
    is_stuck: bool = False
    """The engine didn't even end when everything was cancelled."""


class EngineFront(Protocol):
    """Thread-safe. Everything that passes is picklable, so that the engine can live in a child process unchanged."""

    def subscribe(self, sink: EventSink) -> Callable[[], None]:
        """Deliver all events to `sink`; returns what unsubscribes it. One sink per front end, not per request."""
        ...

    def recognised(self, request: Request) -> Request:
        """The request to submit: answers that its prompt quotes get back the ids they were said in.

        Takes as long as encoding the prompt does: call it where that was done, never on an event loop.
        """
        ...

    def submit(self, request: Request, *, wake: bool = True) -> None:
        """Queue a request; its events follow through the sinks.

        Args:
            request: what to generate.
            wake: False lets a sleeping engine sleep on until `wake`, for what the caller does before it: an engine
                that begins a prompt takes the interpreter's lock for milliseconds.

        Raises:
            QueueFull: the bounded queue is full.
            EngineStopped: the engine thread is gone.
            RequestError: it can never be served (prompt past the context limit, ...).
        """
        ...

    def wake(self) -> None:
        """Have a sleeping engine look for what was submitted."""
        ...

    def cancel(self, request_id: str) -> None:
        """Stop a request at the next step boundary; it ends with `Finished(reason="cancelled")`. Unknown ids pass."""
        ...

    def health(self) -> EngineHealth: ...

    def stats(self) -> Mapping[str, Any]:
        """Counters for `/stats`: JSON values, a consistent snapshot."""
        ...

    def clear_prefix_cache(self) -> Mapping[str, Any]:
        """Drop every retained prefix; returns what was dropped (entries, bytes)."""
        ...

    def close_session(self, session_id: str, owner: str = "") -> bool:
        """Forget a session's affinity; whether it was known."""
        ...

    def close(self, timeout_seconds: float) -> Shutdown:
        """Stop admission, drain, then stop the thread. Safe to call twice."""
        ...
