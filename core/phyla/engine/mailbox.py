"""What other threads leave for the engine thread, and how it waits for more."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from phyla.errors import EngineStopped, QueueFull, RequestError
from phyla.request import Request


@dataclass
class Delivery:
    """Everything that arrived since the last look."""

    requests: list[Request] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    calls: list[tuple[Callable[[], Any], Future[Any]]] = field(default_factory=list)


class Mailbox:
    """Thread-safe. Counts waiting requests, so that a full queue is known where the request arrives.

    A request counts as waiting from `post` to `left_queue` or `cancel`, and as known until `gone`.
    """

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._condition = threading.Condition()
        self._delivery = Delivery()
        self._known: dict[str, int] = {}
        """Number of samples by request."""

        self._waiting: set[str] = set()
        self._closed: str | None = None
        self._stopping = False

    @property
    def num_waiting(self) -> int:
        with self._condition:
            return len(self._waiting)

    @property
    def num_known(self) -> int:
        """Requests that haven't ended."""
        with self._condition:
            return len(self._known)

    @property
    def is_stopping(self) -> bool:
        with self._condition:
            return self._stopping

    def post(self, request: Request, *, wake: bool = True) -> None:
        """Leave a request.

        Args:
            request: what to generate.
            wake: False leaves it to `wake` to end a wait.

        Raises:
            EngineStopped: no more are taken.
            QueueFull: as many as allowed are waiting.
            RequestError: a request of that id hasn't ended yet.
        """
        with self._condition:
            if self._closed is not None:
                raise EngineStopped(self._closed)
            if request.request_id in self._known:
                raise RequestError(f"A request with the id '{request.request_id}' is being served already.")
            if len(self._waiting) >= self._max_waiting:
                raise QueueFull(f"{len(self._waiting)} requests are waiting, as many as are allowed. Try again later.")
            self._known[request.request_id] = request.num_samples
            self._waiting.add(request.request_id)
            self._delivery.requests.append(request)
            if wake:
                self._condition.notify()

    def wake(self) -> None:
        """End a wait, if there is mail."""
        with self._condition:
            self._condition.notify()

    def cancel(self, request_id: str) -> None:
        """Leave word that a request isn't wanted any more; unknown ids pass. Its place in the queue is free at once."""
        with self._condition:
            if request_id in self._known:
                self._waiting.discard(request_id)
                self._delivery.cancelled.append(request_id)
                self._condition.notify()

    def call(self, work: Callable[[], Any]) -> Future[Any]:
        """Have something run on the engine thread between two steps."""
        future: Future[Any] = Future()
        with self._condition:
            if self._stopping or self._closed is not None:
                future.set_exception(EngineStopped(self._closed or "The engine is shutting down."))
                return future
            self._delivery.calls.append((work, future))
            self._condition.notify()
        return future

    def left_queue(self, request_id: str) -> None:
        with self._condition:
            self._waiting.discard(request_id)

    def gone(self, request_id: str) -> None:
        """The request ended, however it did."""
        with self._condition:
            self._known.pop(request_id, None)
            self._waiting.discard(request_id)
            self._condition.notify_all()

    def collect(self) -> Delivery:
        """Take everything that arrived."""
        with self._condition:
            delivery, self._delivery = self._delivery, Delivery()
            return delivery

    def wait(self) -> None:
        """Sleep until something arrives or the engine is to stop."""
        with self._condition:
            self._condition.wait_for(lambda: self._stopping or self._has_mail())

    def close(self, reason: str) -> None:
        """Take no more requests; what was taken goes on. The first reason stays."""
        with self._condition:
            self._closed = self._closed or reason
            self._condition.notify_all()

    def stop(self) -> None:
        """Let the engine thread end at its next look."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()

    def drained(self, timeout_seconds: float) -> bool:
        """Wait until every request has ended; whether that happened in time."""
        with self._condition:
            return self._condition.wait_for(lambda: not self._known, timeout_seconds)

    def abandon(self) -> dict[str, int]:
        """Forget every request that hasn't ended; returns their ids and numbers of samples."""
        with self._condition:
            left, self._known = self._known, {}
            self._waiting.clear()
            for _, future in self._delivery.calls:
                future.cancel()
            self._delivery = Delivery()
            self._condition.notify_all()
            return left

    def cancel_all(self) -> int:
        """Cancel whatever hasn't ended; returns how many that were."""
        with self._condition:
            self._delivery.cancelled.extend(self._known)
            self._condition.notify()
            return len(self._known)

    def _has_mail(self) -> bool:
        return bool(self._delivery.requests or self._delivery.cancelled or self._delivery.calls)
