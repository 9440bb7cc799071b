"""How rows end: usage, last events, and what is said about failures."""

from __future__ import annotations

import logging

from phyla.engine.records import RequestFinished
from phyla.engine.row import Row
from phyla.errors import GenerationFailed, PhylaError, stack_of
from phyla.request import Failed, Finished, Request, Usage

_log = logging.getLogger(__name__)


def usage_of(row: Row, now: float) -> Usage:
    """Counts and times of a row that has ended."""
    first = row.clock.first_token
    return Usage(
        num_prompt_tokens=len(row.request.rendered.ids),
        num_completion_tokens=row.num_emitted,
        num_cached_tokens=row.num_cached,
        lane=_lane(row),
        speculation=None if row.proposers is None else row.proposers.usage.report(),
        extras={} if row.proposers is None or row.proposers.fills is None else {"fill": row.proposers.fills.report()},
        prompt_seconds=(now if first is None else first) - row.clock.admitted,
        decode_seconds=0.0 if first is None else now - first,
    )


def _lane(row: Row) -> str:
    shared = "batched" if row.shared_a_step else "serial"
    return f"{shared}+spec" if row.proposers is not None and row.proposers.usage.has_drafted else shared


def finished(row: Row, text: str, now: float) -> Finished:
    """The last event of a row that ended as asked."""
    assert row.reason is not None
    return Finished(row.key.request_id, row.reason, usage_of(row, now), text, row.answer.stop_string, row.key.sample)


def never_began(request: Request, sample: int) -> Finished:
    """The last event of a sample that was cancelled before it had a row."""
    return Finished(request.request_id, "cancelled", Usage(len(request.rendered.ids), 0), sample=sample)


def failed(request_id: str, sample: int, error: Exception) -> Failed:
    """The last event of a sample that couldn't be served. Foreign errors may quote paths or prompts: name only."""
    if isinstance(error, PhylaError):
        if isinstance(error, GenerationFailed):
            _log_stack(request_id, error)
        return Failed(request_id, str(error), type(error).__name__, sample)
    if isinstance(error, MemoryError):
        message = "There isn't enough memory for this request. Shorten it, or set --kv-budget so that requests wait."
        return Failed(request_id, message, "GenerationFailed", sample)
    _log_stack(request_id, error)
    message = f"The request's computation failed ({type(error).__name__}); the log has its stack under {request_id}."
    return Failed(request_id, message, "GenerationFailed", sample)


def record_of(event: Finished | Failed) -> RequestFinished:
    """What listeners hear about it."""
    if isinstance(event, Failed):
        return RequestFinished(event.request_id, "failed", None, event.error)
    return RequestFinished(event.request_id, event.reason, event.usage)


def _log_stack(request_id: str, error: Exception) -> None:
    _log.error("Request %s failed: %s", request_id, stack_of(error))
    _log.debug("Request %s failed.", request_id, exc_info=error)
