"""POST /v1/completions."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler

from phyla_server.encoder import dump
from phyla_server.event_stream import EventStream
from phyla_server.incoming import receive
from phyla_server.openapi import TextOperation
from phyla_server.serving import Serving
from phyla_server.text_encoder import TextChunks, WholeText
from phyla_server.text_request import prepare_text
from phyla_server.whole import collect


def text_routes(serving: Serving) -> list[HTTPRouteHandler]:
    @post(
        ["/v1/completions", "/completions"],
        status_code=200,
        operation_class=TextOperation,
        summary="Continue one or several texts",
        tags=["openai"],
    )
    async def completions(request: Request[Any, Any, Any]) -> Response[bytes]:
        incoming = await receive(serving, request)
        prepared = await serving.preparation.run(lambda: prepare_text(serving, incoming))
        ticket = serving.generation.open(prepared.requests)
        if prepared.stream:
            return EventStream(ticket, TextChunks(prepared.shape), serving.settings.keepalive_seconds)
        body = await collect(ticket, WholeText(prepared.shape), request.receive)
        return Response(dump(body), media_type="application/json")

    return [completions]
