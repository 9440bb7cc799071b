"""An engine's front that speaks from a script: real threads, real events, no model. For tests of what uses it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from phyla.engine import EngineHealth, EventSink, Shutdown
from phyla.engine.answer import Answer
from phyla.errors import EngineStopped, QueueFull
from phyla.request import EngineEvent, Failed, Finished, FinishReason, Request, Started, Token, TokenLogprobs, Usage
from phyla.tokenizer import Tokenizer

Script = Callable[[Request, int], Iterable["int | None"]]
"""`(request, sample) -> token ids`; a None is a step without a token. What it raises fails that request alone."""

IDLE_SECONDS = 0.002
END = -1
"""What stands for the end of a script."""


class ScriptedFront:
    """Plays one script per sample, one token a step, with stop strings, caps and end of sequence as a real engine has.

    Args:
        script: what each request answers.
        step_seconds: how long a step takes.
        num_seats: requests that run together; more wait.
        max_waiting: requests that may wait; the next one is refused.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        script: Script,
        *,
        step_seconds: float = 0.0,
        num_seats: int = 8,
        max_waiting: int = 64,
    ) -> None:
        self._tokenizer = tokenizer
        self._script = script
        self._step_seconds = step_seconds
        self._num_seats = num_seats
        self._max_waiting = max_waiting
        self._sinks: list[EventSink] = []
        self._waiting: list[Request] = []
        self._running: dict[str, list[_Row]] = {}
        self._cancelled: set[str] = set()
        self._has_news = threading.Condition()
        self._is_closing = False
        self._death: str | None = None
        self.received: list[Request] = []
        """Every request that was taken, in order."""

        self._thread = threading.Thread(target=self._run, name="scripted-engine", daemon=True)
        self._thread.start()

    def subscribe(self, sink: EventSink) -> Callable[[], None]:
        self._sinks.append(sink)
        return lambda: self._sinks.remove(sink)

    def recognised(self, request: Request) -> Request:
        return request

    def submit(self, request: Request, *, wake: bool = True) -> None:
        with self._has_news:
            if self._death is not None or self._is_closing:
                raise EngineStopped(self._death or "the engine is shutting down")
            if len(self._waiting) >= self._max_waiting:
                raise QueueFull(f"{self._max_waiting} requests are already waiting. Try again later.")
            self.received.append(request)
            self._waiting.append(request)
            if wake:
                self._has_news.notify_all()

    def wake(self) -> None:
        with self._has_news:
            self._has_news.notify_all()

    def cancel(self, request_id: str) -> None:
        with self._has_news:
            self._cancelled.add(request_id)
            self._has_news.notify_all()

    def health(self) -> EngineHealth:
        return EngineHealth(
            ok=self._death is None, reason=self._death, num_active=len(self._running), num_waiting=len(self._waiting)
        )

    def stats(self) -> Mapping[str, Any]:
        return {"batch": {"configured": self._num_seats, "mode": "batch", "active_rows": len(self._running)}}

    def clear_prefix_cache(self) -> Mapping[str, Any]:
        return {"entries": 0, "bytes": 0}

    def close_session(self, session_id: str, owner: str = "") -> bool:
        return any(one.session_id == session_id and one.owner == owner for one in self.received)

    def die(self, reason: str) -> None:
        """End the thread as a crash would: nobody is told but through `health`."""
        with self._has_news:
            self._death = reason
            self._has_news.notify_all()
        self._thread.join()

    def wait_until_idle(self, timeout_seconds: float = 10.0) -> bool:
        """Whether all requests ended in time."""
        with self._has_news:
            return self._has_news.wait_for(lambda: not self._running and not self._waiting, timeout_seconds)

    def close(self, timeout_seconds: float) -> Shutdown:
        with self._has_news:
            self._is_closing = True
            self._has_news.notify_all()
            self._has_news.wait_for(self._is_over, timeout_seconds)
            drained = not self._running and not self._waiting
            left = [*self._running, *(one.request_id for one in self._waiting)]
            self._cancelled.update(left)
            self._has_news.notify_all()
        self._thread.join(5.0)
        return Shutdown(drained=drained, timed_out=not drained, num_cancelled=len(left))

    def _run(self) -> None:
        while True:
            with self._has_news:
                self._has_news.wait_for(self._has_work)
                if self._death is not None or (self._is_closing and not self._running and not self._waiting):
                    return
                events = self._admit()
            events += self._step()
            self._emit(events)
            with self._has_news:
                self._running = {key: rows for key, rows in self._running.items() if any(row.is_open for row in rows)}
                self._has_news.notify_all()
                if not any(isinstance(event, Token) for event in events):
                    self._has_news.wait(IDLE_SECONDS)

    def _is_over(self) -> bool:
        return self._death is not None or not (self._running or self._waiting)

    def _has_work(self) -> bool:
        return bool(self._death is not None or self._is_closing or self._running or self._waiting)

    def _admit(self) -> list[EngineEvent]:
        events: list[EngineEvent] = []
        while self._waiting and len(self._running) < self._num_seats:
            request = self._waiting.pop(0)
            self._running[request.request_id] = [
                _Row(request, sample, self._script, self._tokenizer) for sample in range(request.num_samples)
            ]
            events.append(Started(request.request_id, len(request.rendered.ids)))
        return events

    def _step(self) -> list[EngineEvent]:
        if self._step_seconds:
            time.sleep(self._step_seconds)
        events: list[EngineEvent] = []
        for request_id, rows in list(self._running.items()):
            for row in rows:
                if row.is_open:
                    events += row.finish("cancelled") if request_id in self._cancelled else row.step()
            if any(isinstance(event, Failed) and event.request_id == request_id for event in events):
                for row in rows:
                    row.is_open = False
        return events

    def _emit(self, events: Sequence[EngineEvent]) -> None:
        if events:
            for sink in tuple(self._sinks):
                sink(events)


class _Row:
    """One sample being played."""

    def __init__(self, request: Request, sample: int, script: Script, tokenizer: Tokenizer) -> None:
        self.is_open = True
        self._request = request
        self._sample = sample
        self._open = script
        self._script: Iterator[int | None] | None = None
        self._ends = frozenset() if request.sampling.ignore_eos else tokenizer.eos_ids
        self._answer = Answer(request, sample, tokenizer)
        self._num_emitted = 0

    def step(self) -> list[EngineEvent]:
        try:
            if self._script is None:
                self._script = iter(self._open(self._request, self._sample))
            token_id = next(self._script, END)
        except Exception as error:
            self.is_open = False
            return [Failed(self._request.request_id, str(error), kind=type(error).__name__, sample=self._sample)]
        if token_id is None:
            return []
        if token_id == END or token_id in self._ends:
            return self.finish("stop")
        self._num_emitted += 1
        events = self._answer.add(token_id, _scripted_logprobs(token_id, self._request.sampling.num_logprobs))
        if self._answer.stop_string is not None:
            return [*events, self._finished("stop")]
        return [*events, *(self.finish("length") if self._num_emitted == self._request.max_tokens else [])]

    def finish(self, reason: FinishReason) -> list[EngineEvent]:
        """End without a stop string having fired: what is held back leaves now."""
        ending = self._answer.finish(is_cut=reason == "length")
        return [*ending.events, self._finished(reason, ending.text)]

    def _finished(self, reason: FinishReason, text: str = "") -> Finished:
        self.is_open = False
        usage = Usage(len(self._request.rendered.ids), self._num_emitted)
        return Finished(self._request.request_id, reason, usage, text, self._answer.stop_string, self._sample)


def _scripted_logprobs(token_id: int, num_top: int | None) -> TokenLogprobs | None:
    """The chosen token is the likeliest at -0.25; the ids after it follow at whole steps."""
    if num_top is None:
        return None
    return TokenLogprobs(-0.25, tuple((token_id + index, -0.25 - index) for index in range(num_top)))
