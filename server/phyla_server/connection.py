"""One client's connection: uvicorn's, with an end to its patience."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

ANSWER_SECONDS = 5.0
"""What a route that waits for the body gets to say so itself before the connection goes."""


class PatienceConfig(uvicorn.Config):
    """A configuration whose connections wait so long, and no longer, for what a client has begun to send."""

    def __init__(self, app: Any, *, head_seconds: float, body_seconds: float, **options: Any) -> None:
        super().__init__(app, http=PatientConnection, **options)
        self.head_seconds = head_seconds
        self.body_seconds = body_seconds


class PatientConnection(H11Protocol):
    """Closes if a request's head or body isn't there in time: uvicorn only ends connections that are idle after one.

    Both times are for the whole of it: a byte now and then buys no more.
    """

    config: PatienceConfig

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._awaited: Literal["head", "body"] | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._await(None)

    def _watch(self) -> None:
        state = self.conn.their_state
        self._await("head" if state is h11.IDLE else "body" if state is h11.SEND_BODY else None)

    def _await(self, awaited: Literal["head", "body"] | None) -> None:
        if awaited == self._awaited:
            return
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._awaited = awaited
        if awaited is not None:
            seconds = self.config.head_seconds if awaited == "head" else self.config.body_seconds + ANSWER_SECONDS
            self._deadline = self.loop.call_later(seconds, self.transport.close)
