"""Which session a request belongs to."""

from __future__ import annotations

from collections.abc import Mapping

MAX_SESSION_ID = 256


def read_session_id(body: Mapping[str, object], headers: Mapping[str, str]) -> str | None:
    """The first string among `session_id`, `prompt_cache_key` and the headers `x-session-affinity`, `session_id`."""
    candidates = (
        body.get("session_id"),
        body.get("prompt_cache_key"),
        headers.get("x-session-affinity"),
        headers.get("session_id"),
    )
    found = next((one for one in candidates if isinstance(one, str) and one), None)
    return found[:MAX_SESSION_ID] if found is not None else None


def read_trace_id(headers: Mapping[str, str]) -> str | None:
    """The caller's id for traces, under our header's name or the older one."""
    found = headers.get("x-phyla-trace-id", headers.get("x-mlx-bun-trace-id"))
    return found[:MAX_SESSION_ID] if found else None
