"""The outermost layer: Host, Origin and key are checked before any route is looked up, so a new route is closed too."""

from __future__ import annotations

import ipaddress
import logging
import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send

from phyla_server.access_log import log_access
from phyla_server.encoder import dump
from phyla_server.errors import ApiError
from phyla_server.keys import Caller, KeyRing

PUBLIC_PATHS = frozenset({"/health"})
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
HEADER_NAMES = re.compile(r"[A-Za-z0-9_-]+( *, *[A-Za-z0-9_-]+){0,63}")
ALLOWED_METHODS = "GET, HEAD, POST, DELETE, OPTIONS"
ALLOWED_HEADERS = "authorization, content-type, x-api-key, x-request-id, x-session-affinity, session_id"


@dataclass(frozen=True)
class GuardRules:
    """Whom the guard lets pass."""

    keys: KeyRing
    allowed_hosts: frozenset[str] = frozenset()
    """Lower-case names beyond loopback and IP addresses; `*` is any."""

    allowed_origins: frozenset[str] = frozenset()
    is_unix: bool = False
    """A unix socket has no DNS to rebind, and its permissions make whoever can open it an admin."""

    trusts_local_admin: bool = True
    """Without keys: whether callers are admins. Only where nothing but loopback is listened on."""


class Guard:
    """Wraps the whole application."""

    def __init__(self, app: ASGIApp, rules: GuardRules) -> None:
        self._app = app
        self._rules = rules
        self._log = logging.getLogger("phyla.server.access")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == ScopeType.HTTP:
            await self._exchange(scope, receive, send)
        else:
            # No route here speaks it, and a browser sends no preflight for it.
            await send({"type": "websocket.close", "code": 1008, "reason": None})

    async def _exchange(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        request_id = _request_id(headers)
        exchange = _Exchange(send, request_id, headers.get("origin"))
        started = time.perf_counter()
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        try:
            state["caller"] = self._admit(scope, headers)
            if scope["method"] == "OPTIONS":
                await exchange.preflight(headers.get("access-control-request-headers", ""))
            else:
                await self._app(_as_get(scope), receive, exchange.send)
        except ApiError as error:
            await exchange.refuse(error)
        finally:
            log_access(self._log, scope, request_id, exchange.status, time.perf_counter() - started)

    def _admit(self, scope: HTTPScope, headers: Mapping[str, str]) -> Caller:
        rules = self._rules
        if not rules.is_unix and not _is_host_allowed(headers.get("host", ""), rules.allowed_hosts):
            raise ApiError(403, "this Host is not served here; the server's --allowed-host adds names", code="bad_host")
        origin = headers.get("origin")
        if origin is not None and not _is_origin_allowed(origin, headers.get("host", ""), rules.allowed_origins):
            raise ApiError(
                403, "this Origin is not allowed; the server's --allowed-origin adds some", code="bad_origin"
            )
        if rules.keys.is_empty:
            return Caller(is_admin=rules.is_unix or rules.trusts_local_admin)
        caller = rules.keys.caller(_key(headers))
        if caller is not None:
            return Caller(caller.owner, is_admin=caller.is_admin or rules.is_unix, has_key=True)
        if scope["path"] in PUBLIC_PATHS or scope["method"] == "OPTIONS":
            return Caller()
        raise ApiError(401, "a valid API key is needed", code="invalid_api_key", headers={"www-authenticate": "Bearer"})


class _Exchange:
    """The answering side of one request: adds headers to whatever is sent and remembers the status."""

    def __init__(self, send: Send, request_id: str, origin: str | None) -> None:
        self._send = send
        self._headers = [(b"x-request-id", request_id.encode("ascii")), (b"x-content-type-options", b"nosniff")]
        # Only reached with an origin that was allowed, or before it was refused: then no answer is readable anyway.
        if origin is not None and origin.isascii():
            self._headers += [(b"access-control-allow-origin", origin.encode("ascii")), (b"vary", b"origin")]
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message["headers"], *self._headers]
        await self._send(message)

    async def preflight(self, requested: str) -> None:
        # The origin was let in: which headers its client library adds is no further danger.
        allowed = f"{ALLOWED_HEADERS}, {requested}" if HEADER_NAMES.fullmatch(requested) else ALLOWED_HEADERS
        headers = [
            (b"access-control-allow-methods", ALLOWED_METHODS.encode()),
            (b"access-control-allow-headers", allowed.encode()),
        ]
        await self.send({"type": "http.response.start", "status": 204, "headers": headers})
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def refuse(self, error: ApiError) -> None:
        body = dump(error.body())
        self._headers = self._headers[:2]
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        headers += [(name.encode(), value.encode()) for name, value in error.headers.items()]
        await self.send({"type": "http.response.start", "status": error.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body, "more_body": False})


def _as_get(scope: HTTPScope) -> HTTPScope:
    """HEAD asks for what GET would say, without its body; that one is left out where the connection is written to."""
    if scope["method"] != "HEAD":
        return scope
    as_get = scope.copy()
    as_get["method"] = "GET"
    return as_get


def _request_id(headers: Mapping[str, str]) -> str:
    given = headers.get("x-request-id", "")
    return given if REQUEST_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"


def _key(headers: Mapping[str, str]) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return headers.get("x-api-key")


def _is_host_allowed(host: str, allowed: frozenset[str]) -> bool:
    """Loopback's name, any IP address (only names can be rebound) and the configured names; the port is ignored."""
    if "*" in allowed:
        return True
    name = _host_name(host)
    return name == "localhost" or name in allowed or _is_address(name)


def _host_name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_origin_allowed(origin: str, host: str, allowed: frozenset[str]) -> bool:
    """The server's own pages and the configured origins."""
    if "*" in allowed or origin in allowed:
        return True
    scheme, _, authority = origin.partition("://")
    return scheme in ("http", "https") and authority != "" and authority.lower() == host.lower()
