"""From exceptions to answers: whatever is raised becomes an error object; stacks go to the log alone."""

from __future__ import annotations

import logging
from typing import Any

from litestar import Request, Response
from litestar.exceptions import HTTPException
from phyla.errors import PhylaError, stack_of

from phyla_server.body import ClientGone
from phyla_server.encoder import dump
from phyla_server.errors import ApiError, api_error, not_found

Handled = Request[Any, Any, Any]


def handle_api_error(request: Handled, error: ApiError) -> Response[bytes]:
    headers = dict(error.headers)
    return Response(dump(error.body()), status_code=error.status, headers=headers, media_type="application/json")


def handle_phyla_error(request: Handled, error: PhylaError) -> Response[bytes]:
    answer = api_error(error)
    # A stopped engine has told its reason once; every refused request repeating it would bury it.
    if answer.status == 500:
        _log_failure(_request_id(request), error)
    return handle_api_error(request, answer)


def handle_gone(request: Handled, error: ClientGone) -> Response[bytes]:
    return Response(b"", status_code=499, media_type="application/json")


def handle_http(request: Handled, error: HTTPException) -> Response[bytes]:
    """What Litestar itself refuses: unknown paths and methods."""
    if error.status_code == 404:
        return handle_api_error(request, not_found())
    if error.status_code == 405:
        headers = dict(error.headers or {})
        return handle_api_error(request, ApiError(405, "method not allowed", headers=headers))
    if error.status_code < 500:
        return handle_api_error(request, ApiError(error.status_code, "the request is not valid"))
    return handle_unexpected(request, error)


def handle_unexpected(request: Handled, error: Exception) -> Response[bytes]:
    return handle_api_error(request, unexpected(_request_id(request), error))


def unexpected(request_id: str, error: Exception) -> ApiError:
    """What a client is told of an error that nobody foresaw; the log gets the stack."""
    _log_failure(request_id, error)
    return ApiError(500, f"the server failed; its log has the cause under {request_id}", "server_error")


def _request_id(request: Handled) -> str:
    return str(request.scope["state"].get("request_id", ""))


def _log_failure(request_id: str, error: Exception) -> None:
    log = logging.getLogger("phyla.server")
    log.error("request %s failed: %s", request_id, stack_of(error))
    log.debug("request %s failed", request_id, exc_info=error)


HANDLERS: dict[Any, Any] = {
    ApiError: handle_api_error,
    PhylaError: handle_phyla_error,
    ClientGone: handle_gone,
    HTTPException: handle_http,
    Exception: handle_unexpected,
}
