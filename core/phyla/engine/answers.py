"""Waiting for answers without a server: one sink that sorts the events of an engine by request."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from phyla import errors
from phyla.errors import GenerationFailed, PhylaError
from phyla.request import EngineEvent, Failed, Finished, FinishReason, Request, Started, Token, TokenLogprobs, Usage

if TYPE_CHECKING:
    from phyla.engine.front import EngineFront

Inbox = queue.SimpleQueue[EngineEvent]


@dataclass(frozen=True)
class Piece:
    """What became known with one step of a streamed answer."""

    text: str
    token_id: int | None = None
    """None in the last piece of a sample, which may still bring text that was held back."""

    special: bool = False
    logprobs: TokenLogprobs | None = None
    sample: int = 0
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    stop_string: str | None = None


@dataclass(frozen=True)
class Completion:
    """One finished answer."""

    text: str
    """Without control tokens."""

    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """One per token, if they were asked for."""

    stop_string: str | None = None
    samples: tuple[Completion, ...] = ()
    """All samples, this one first, if several were asked for."""


class Answers:
    """Thread-safe."""

    def __init__(self, engine: EngineFront) -> None:
        self._engine = engine
        self._inboxes: dict[str, Inbox] = {}
        self._lock = threading.Lock()
        engine.subscribe(self._sort)

    def wait(self, request: Request, held: object = None) -> Completion:
        """Submit a request and wait for all its samples.

        Raises:
            PhylaError: what the request failed with.
        """
        pieces: list[list[Piece]] = [[] for _ in range(request.num_samples)]
        for piece in self.stream(request, held):
            pieces[piece.sample].append(piece)
        samples = tuple(_completion(of_one) for of_one in pieces)
        first = samples[0]
        if len(samples) == 1:
            return first
        return Completion(
            first.text,
            first.token_ids,
            first.finish_reason,
            first.usage,
            first.logprobs,
            first.stop_string,
            samples,
        )

    def stream(self, request: Request, held: object = None) -> Iterator[Piece]:
        """Submit a request now; its pieces follow as they come. Closing the iterator cancels it.

        Args:
            request: what to submit.
            held: kept alive until the answer is complete, such as the request's compiled constraint.
        """
        inbox: Inbox = queue.SimpleQueue()
        with self._lock:
            self._inboxes[request.request_id] = inbox
        try:
            self._engine.submit(self._engine.recognised(request))
        except BaseException:
            self._forget(request.request_id)
            raise
        return self._pieces(request, inbox, held)

    def _pieces(self, request: Request, inbox: Inbox, held: object) -> Iterator[Piece]:
        num_open = request.num_samples
        try:
            while num_open:
                event = inbox.get()
                if isinstance(event, Failed):
                    raise error_of(event)
                if isinstance(event, Token):
                    yield Piece(event.text, event.token_id, event.special, event.logprobs, event.sample)
                if isinstance(event, Finished):
                    num_open -= 1
                    yield Piece(
                        event.text,
                        sample=event.sample,
                        finish_reason=event.reason,
                        usage=event.usage,
                        stop_string=event.stop_string,
                    )
        finally:
            self._forget(request.request_id)
            if num_open:
                self._engine.cancel(request.request_id)

    def _sort(self, events: Sequence[EngineEvent]) -> None:
        for event in events:
            inbox = self._inboxes.get(event.request_id)
            if inbox is not None and not isinstance(event, Started):
                inbox.put(event)

    def _forget(self, request_id: str) -> None:
        with self._lock:
            self._inboxes.pop(request_id, None)


def error_of(event: Failed) -> PhylaError:
    """The failure as the error it was."""
    kind = getattr(errors, event.kind, GenerationFailed)
    if isinstance(kind, type) and issubclass(kind, PhylaError):
        error = kind.__new__(kind)
        error.args = (event.error,)
        return error
    return GenerationFailed(event.error)


def _completion(pieces: Sequence[Piece]) -> Completion:
    end = pieces[-1]
    assert end.finish_reason is not None
    assert end.usage is not None
    tokens = [piece for piece in pieces if piece.token_id is not None]
    logprobs = tuple(piece.logprobs for piece in tokens if piece.logprobs is not None)
    return Completion(
        text="".join(piece.text for piece in pieces if not piece.special),
        token_ids=tuple(piece.token_id for piece in tokens if piece.token_id is not None),
        finish_reason=end.finish_reason,
        usage=end.usage,
        logprobs=logprobs if len(logprobs) == len(tokens) and logprobs else None,
        stop_string=end.stop_string,
    )
