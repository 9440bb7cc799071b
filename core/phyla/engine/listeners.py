"""Delivers records to whoever listens, on a thread of its own: a slow or failing listener never holds a step up."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence

from phyla.engine.records import EngineStarted, RequestFinished, StepFinished

Record = EngineStarted | StepFinished | RequestFinished
Listener = Callable[[Record], None]

MAX_UNDELIVERED = 10_000
"""Records kept for a slow listener; the ones after that are dropped and counted."""

_log = logging.getLogger(__name__)


class Listeners:
    """Safe to tell from any thread. `close` delivers what was told before it."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = tuple(listeners)
        self._records: queue.Queue[Record | None] = queue.Queue(MAX_UNDELIVERED)
        self.num_dropped = 0
        self._thread: threading.Thread | None = None
        if self._listeners:
            self._thread = threading.Thread(target=self._deliver, name="phyla-listeners", daemon=True)
            self._thread.start()

    def tell(self, record: Record) -> None:
        """Hand a record over; never blocks."""
        if self._thread is None:
            return
        try:
            self._records.put_nowait(record)
        except queue.Full:
            self.num_dropped += 1

    def close(self) -> None:
        """Deliver what is left, then end the thread. Safe to call twice."""
        if self._thread is not None:
            self._records.put(None)
            self._thread.join()
            self._thread = None

    def _deliver(self) -> None:
        while (record := self._records.get()) is not None:
            for listener in self._listeners:
                try:
                    listener(record)
                except Exception:
                    _log.exception("A listener for %s failed; decoding goes on.", type(record).__name__)
