"""What a protocol brings: how its answers are spelt, whole and streamed."""

from __future__ import annotations

import json
from typing import Any, Protocol

from phyla.request import EngineEvent

from phyla_server.errors import ApiError

DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": keepalive\n\n"


class StreamEncoder(Protocol):
    """Frames of one streamed answer. State of one response."""

    def opening(self) -> bytes:
        """Sent at once, before the engine has said anything."""
        ...

    def event(self, event: EngineEvent) -> bytes:
        """Frames for one event; empty while something is held back."""
        ...

    def has_all(self) -> bool:
        """Whether the answer is over though the model may go on; its samples' last events are still wanted."""
        ...

    def failure(self, error: ApiError) -> bytes:
        """Frames that end the stream after an error."""
        ...

    def closing(self) -> bytes:
        """Frames after the last sample has finished."""
        ...


class WholeEncoder(Protocol):
    """Collects one answer that is sent in one piece."""

    def event(self, event: EngineEvent) -> None: ...

    def has_all(self) -> bool:
        """As of a stream."""
        ...

    def body(self) -> dict[str, Any]: ...


def frame(value: object) -> bytes:
    """One server-sent event."""
    return b"data: " + dump(value) + b"\n\n"


def dump(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
