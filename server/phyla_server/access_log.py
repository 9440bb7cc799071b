"""One JSON line per request. No prompt, no answer, no key, no query string."""

from __future__ import annotations

import json
import logging
from typing import TextIO

from litestar.types import HTTPScope

MAX_LOGGED_PATH = 120


def log_access(log: logging.Logger, scope: HTTPScope, request_id: str, status: int, seconds: float) -> None:
    """Write the line of one finished request; status 0 is one that the client left before an answer."""
    state = scope.get("state", {})
    line = {
        "event": "request",
        "request_id": request_id,
        "method": scope["method"],
        # Only of routes that exist: anything else is whatever a client cared to send.
        "path": scope["path"][:MAX_LOGGED_PATH] if status != 404 else "unknown",
        "status": status,
        "ms": round(seconds * 1000, 1),
        "owner": state["caller"].owner[:8] if "caller" in state else "",
    }
    log.info(json.dumps(line))


def start_logging(stream: TextIO) -> None:
    """Send the server's log lines to `stream`, as they are; `--log-level` says which."""
    log = logging.getLogger("phyla.server")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log.handlers = [handler]
    log.propagate = False
