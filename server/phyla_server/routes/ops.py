"""GET /health and /stats, POST /admin/cache/..."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from litestar import Request, Response, get, post
from litestar.handlers import HTTPRouteHandler

from phyla_server.body import parse_object
from phyla_server.encoder import dump
from phyla_server.errors import bad_request
from phyla_server.fields import Fields
from phyla_server.incoming import caller_of, receive
from phyla_server.openapi import ClearOperation, HealthOperation, JsonOperation, SessionOperation
from phyla_server.routes.access import ADMIN
from phyla_server.serving import Serving

HEALTHY = b'{"status": "ok"}'
UNAVAILABLE = b'{"status": "unavailable"}'
NOTHING_ON_DISK: Mapping[str, object] = {
    "durable": True,
    "entries": 0,
    "pending_snapshots": 0,
    "pending_spills": 0,
    "failed_spills": 0,
    "longest_durable_prefix_tokens": 0,
}
"""The answer to a flush: prefixes are kept in memory alone, so none is on disk and none on its way there."""


def ops_routes(serving: Serving) -> list[HTTPRouteHandler]:
    engine = serving.model.engine

    @get("/health", operation_class=HealthOperation, summary="Whether requests can be served", tags=["operations"])
    async def health(request: Request[Any, Any, Any]) -> Response[bytes]:
        state = engine.health()
        if state.ok:
            return Response(HEALTHY, media_type="application/json")
        knows_why = caller_of(request).has_key and state.reason is not None
        body = dump({"status": "unavailable", "reason": state.reason}) if knows_why else UNAVAILABLE
        return Response(body, status_code=503, media_type="application/json")

    @get("/stats", operation_class=JsonOperation, summary="Counters of the engine and its caches", tags=["operations"])
    async def stats() -> Response[bytes]:
        server = {
            "owner": serving.owner,
            "model": serving.model.model_id,
            "started_at": int(serving.started_at * 1000),
            "open_requests": serving.generation.num_open,
        }
        storage = {"kv_quant": serving.model.kv_quant} if serving.model.kv_quant else {}
        return Response(dump({"server": server, **storage, **engine.stats()}), media_type="application/json")

    @post(
        "/admin/cache/flush",
        status_code=200,
        opt=ADMIN,
        operation_class=JsonOperation,
        summary="Wait until what is to be kept on disk is there",
        tags=["admin"],
    )
    async def flush_cache() -> Response[bytes]:
        return Response(dump(NOTHING_ON_DISK), media_type="application/json")

    @post(
        "/admin/cache/clear",
        status_code=200,
        opt=ADMIN,
        operation_class=ClearOperation,
        summary="Drop every retained prefix",
        tags=["admin"],
    )
    async def clear_cache() -> Response[bytes]:
        dropped = await serving.preparation.run(engine.clear_prefix_cache)
        return Response(dump(dropped), media_type="application/json")

    @post(
        "/admin/cache/session/close",
        status_code=200,
        operation_class=SessionOperation,
        summary="Forget a session of the caller's own",
        tags=["admin"],
    )
    async def close_session(request: Request[Any, Any, Any]) -> Response[bytes]:
        incoming = await receive(serving, request)
        session_id = Fields(parse_object(incoming.raw)).text("session_id")
        if not session_id:
            raise bad_request("session_id required", "session_id")
        owner = incoming.caller.owner
        closed = await serving.preparation.run(lambda: engine.close_session(session_id, owner))
        return Response(dump({"closed": closed}), media_type="application/json")

    return [health, stats, flush_cache, clear_cache, close_session]
