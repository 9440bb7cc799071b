"""One POST as the routes see it, before anything of it is understood."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from litestar import Request

from phyla_server.body import read_body
from phyla_server.keys import Caller
from phyla_server.serving import Serving


@dataclass(frozen=True)
class Incoming:
    """Plain values: it is read in a preparation thread."""

    raw: bytes
    headers: Mapping[str, str]
    caller: Caller


async def receive(serving: Serving, request: Request[Any, Any, Any]) -> Incoming:
    """Read the body within the server's limits."""
    headers = {name.lower(): value for name, value in request.headers.items()}
    settings = serving.settings
    raw = await read_body(headers, request.receive, settings.max_body_bytes, settings.body_seconds)
    return Incoming(raw, headers, caller_of(request))


def caller_of(request: Request[Any, Any, Any]) -> Caller:
    """Whom the guard let in."""
    caller = request.scope["state"]["caller"]
    assert isinstance(caller, Caller)
    return caller
