"""Server-sent events: the opening at once, a frame a token, comments through silences, cancelled if nobody listens."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from litestar import Request, Response
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Send
from phyla.request import EngineEvent

from phyla_server.encoder import KEEPALIVE, StreamEncoder
from phyla_server.errors import ApiError, interruption
from phyla_server.generation import Ticket
from phyla_server.handlers import unexpected
from phyla_server.leaving import until_disconnect

HEADERS = {"cache-control": "no-cache", "connection": "keep-alive"}


class EventStream(Response[bytes]):
    """A response that streams one ticket through one encoder."""

    def __init__(
        self,
        ticket: Ticket,
        encoder: StreamEncoder,
        keepalive_seconds: float,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(b"", status_code=200, media_type="text/event-stream", headers={**HEADERS, **(headers or {})})
        self._ticket = ticket
        self._encoder = encoder
        self._keepalive_seconds = keepalive_seconds

    def to_asgi_response(self, app: Any, request: Request[Any, Any, Any], **options: Any) -> ASGIResponse:
        headers = {**self.headers, **(options.get("headers") or {})}
        return _StreamedBody(
            self._ticket,
            self._encoder,
            self._keepalive_seconds,
            request.scope["state"]["request_id"],
            body=b"",
            headers=headers,
            media_type="text/event-stream",
            status_code=200,
        )


class _StreamedBody(ASGIResponse):
    _should_set_content_length = False

    def __init__(
        self, ticket: Ticket, encoder: StreamEncoder, keepalive_seconds: float, request_id: str, **options: Any
    ) -> None:
        super().__init__(**options)
        self._ticket = ticket
        self._encoder = encoder
        self._keepalive_seconds = keepalive_seconds
        self._request_id = request_id

    async def send_body(self, send: Send, receive: Receive) -> None:
        watcher = asyncio.create_task(until_disconnect(receive))
        watcher.add_done_callback(lambda _: self._ticket.poke())
        writer = _Writer(send, self._keepalive_seconds, self._ticket)
        try:
            await writer.write(self._encoder.opening())
            await self._run(writer, watcher)
        finally:
            self._ticket.close()
            writer.stop()
            watcher.cancel()

    async def _run(self, writer: _Writer, watcher: asyncio.Task[None]) -> None:
        while not self._ticket.is_finished:
            events = await self._ticket.take()
            if watcher.done():
                return
            frames, error = self._encoded(events)
            if error is not None:
                await writer.write(frames + self._encoder.failure(error), last=True)
                return
            if self._encoder.has_all():
                self._ticket.cut()
            if not self._ticket.is_finished:
                await writer.write_or_keep_alive(frames)
            else:
                await writer.write(frames + self._encoder.closing(), last=True)

    def _encoded(self, events: Sequence[EngineEvent]) -> tuple[bytes, ApiError | None]:
        """Frames up to the first error, and that error."""
        frames = b""
        for event in events:
            error = interruption(event, self._ticket.is_cut)
            if error is not None:
                return frames, error
            try:
                frames += self._encoder.event(event)
            except Exception as failure:
                # A parser, often a plugin's, raised. The status is sent: only a frame can tell the client.
                return frames, unexpected(self._request_id, failure)
        return frames, None


class _Writer:
    """Knows when it last wrote. Its timer only pokes the ticket, so that a busy stream pays nothing for it."""

    def __init__(self, send: Send, keepalive_seconds: float, ticket: Ticket) -> None:
        self._send = send
        self._interval = keepalive_seconds
        self._ticket = ticket
        self._loop = asyncio.get_running_loop()
        self._last_write = self._loop.time()
        self._timer = self._loop.call_later(self._interval, self._tick)

    async def write(self, data: bytes, last: bool = False) -> None:
        self._last_write = self._loop.time()
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    async def write_or_keep_alive(self, frames: bytes) -> None:
        if frames:
            await self.write(frames)
        elif self._is_silent():
            await self.write(KEEPALIVE)

    def stop(self) -> None:
        self._timer.cancel()

    def _is_silent(self) -> bool:
        return self._loop.time() - self._last_write >= self._interval

    def _tick(self) -> None:
        if self._is_silent():
            self._ticket.poke()
        due = max(self._last_write + self._interval, self._loop.time() + self._interval / 4)
        self._timer = self._loop.call_at(due, self._tick)
