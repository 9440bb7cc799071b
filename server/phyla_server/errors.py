"""Errors as clients see them: a status and OpenAI's error object, never a stack, a path or a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import phyla.errors
from phyla.errors import (
    ContextOverflow,
    EngineStopped,
    GenerationFailed,
    OverBudget,
    PhylaError,
    QueueFull,
    RequestError,
    TokenizerError,
    UsageError,
)
from phyla.request import EngineEvent, Failed, Finished


@dataclass
class ApiError(Exception):
    """What a handler raises when a request can't be served."""

    status: int
    message: str
    type: str | None = "invalid_request_error"
    code: str | None = None
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """OpenAI's error object; absent members are left out."""
        members = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": {name: value for name, value in members.items() if value is not None}}


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def not_found() -> ApiError:
    return ApiError(404, "not found", type=None)


def api_error(error: PhylaError) -> ApiError:
    """The status and body of an error that Phyla raised on purpose."""
    return _classified(type(error), str(error))


def failure_error(failed: Failed) -> ApiError:
    """The same for an error that crossed over from the engine as an event."""
    kind = getattr(phyla.errors, failed.kind, GenerationFailed)
    is_ours = isinstance(kind, type) and issubclass(kind, PhylaError)
    return _classified(kind if is_ours else GenerationFailed, failed.error)


def interruption(event: EngineEvent, is_cut: bool) -> ApiError | None:
    """The error that ends an answer early, if this event is one. `is_cut`: we ended it, since it was complete."""
    if isinstance(event, Failed):
        return failure_error(event)
    if isinstance(event, Finished) and event.reason == "cancelled" and not is_cut:
        return ApiError(503, "the request was cancelled by the server, which is shutting down", "engine_unavailable")
    return None


def _classified(kind: type[PhylaError], message: str) -> ApiError:
    if issubclass(kind, QueueFull):
        return ApiError(429, message, "resource_admission", "queue_full", headers={"retry-after": "1"})
    if issubclass(kind, EngineStopped):
        return ApiError(503, message, "engine_unavailable")
    if issubclass(kind, ContextOverflow):
        return ApiError(400, message, code="context_length_exceeded")
    if issubclass(kind, OverBudget):
        return ApiError(400, message, "memory_admission", "context_over_budget")
    if issubclass(kind, TokenizerError):
        return ApiError(400, f"prompt build failed: {message}")
    if issubclass(kind, GenerationFailed):
        return ApiError(500, message, "server_error")
    if issubclass(kind, RequestError | UsageError):
        return ApiError(400, message)
    return ApiError(500, message, "server_error")
