"""Which callers a route is open to, beyond what the guard already asked for."""

from __future__ import annotations

from typing import Any

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from phyla_server.errors import ApiError
from phyla_server.keys import Caller

ADMIN = {"access": "admin"}
"""Put into a handler's `opt` to close it to everybody but admins."""


def require_access(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """A guard of the whole application.

    Raises:
        ApiError: 403 for an admin's route called by somebody else.
    """
    caller = connection.scope["state"]["caller"]
    assert isinstance(caller, Caller)
    if handler.opt.get("access") == "admin" and not caller.is_admin:
        raise ApiError(403, "this route needs an admin key, or the unix socket", code="admin_only")
