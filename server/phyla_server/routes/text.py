"""POST /v1/completions."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler

from phyla_server.encoder import dump
from phyla_server.event_stream import EventStream
from phyla_server.incoming import receive
from phyla_server.leaving import unless_gone
from phyla_server.openapi import TextOperation
from phyla_server.readying import made_ready
from phyla_server.serving import Serving
from phyla_server.text_encoder import TextChunks, WholeText
from phyla_server.text_request import prepare_text
from phyla_server.whole import collect

CONSEQUENCE = "no prompt injection on /v1/completions"


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
        ready = await unless_gone(made_ready(serving, incoming, prepare_text, CONSEQUENCE), request.receive)
        prepared = ready.prepared
        # Encoders come first: if a parser can't be made, nothing was submitted that would run for nobody.
        if prepared.stream:
            chunks = TextChunks(prepared.shape)
            ticket = serving.generation.open(prepared.requests, held=ready.enforced)
            return EventStream(ticket, chunks, serving.settings.keepalive_seconds, ready.headers)
        whole = WholeText(prepared.shape)
        ticket = serving.generation.open(prepared.requests, held=ready.enforced)
        body = await collect(ticket, whole, request.receive)
        return Response(dump(body), media_type="application/json", headers=ready.headers)

    return [completions]
