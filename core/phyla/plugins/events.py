"""Events on their way to listeners: off the engine thread, in order, and never in anybody's way."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from phyla.plugins.declared import Declared

MAX_WAITING = 4096
"""Records that wait for slow listeners; more are dropped and counted, since the engine can't wait for them."""

Listener = Callable[[Any], None]

_log = logging.getLogger(__name__)


class EventDelivery:
    """Hands records to listeners on a thread of its own, which starts with the first record somebody listens to."""

    def __init__(self, listeners: Mapping[str, Sequence[Declared[Listener]]], max_waiting: int = MAX_WAITING) -> None:
        """
        Args:
            listeners: hook name to who listens.
            max_waiting: records that may wait.
        """
        self._listeners = listeners
        self._waiting: queue.Queue[tuple[str, Any] | None] = queue.Queue(max_waiting)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._is_closed = False
        self.num_dropped = 0
        """Records that found the queue full."""

    def post(self, hook: str, record: Any) -> None:
        """Queue a record. Never blocks; does nothing when nobody listens. Called from any thread."""
        if not self._listeners.get(hook):
            return
        with self._lock:
            if self._is_closed:
                return
            try:
                self._waiting.put_nowait((hook, record))
            except queue.Full:
                self._drop(hook)
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="phyla-events", daemon=True)
                self._thread.start()

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Deliver what is waiting, then stop. Safe to call twice."""
        with self._lock:
            self._is_closed = True
            thread = self._thread
        if thread is None or not thread.is_alive():
            return
        try:
            self._waiting.put(None, timeout=timeout_seconds)
        except queue.Full:
            _log.warning("Events were still waiting for a listener that doesn't return; they are lost.")
            return
        thread.join(timeout_seconds)

    def _drop(self, hook: str) -> None:
        self.num_dropped += 1
        if self.num_dropped == 1:
            _log.warning("Listeners of %s are too slow: records are being dropped.", hook)

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            hook, record = item
            for listener in self._listeners[hook]:
                self._deliver(hook, listener, record)

    def _deliver(self, hook: str, listener: Declared[Listener], record: Any) -> None:
        try:
            listener.value(record)
        except Exception:
            _log.exception("Plugin '%s': its %s raised; decoding goes on.", listener.plugin, hook)
