"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler

from phyla_server.chat_encoder import ChatChunks, WholeChat
from phyla_server.chat_request import prepare_chat
from phyla_server.encoder import dump
from phyla_server.event_stream import EventStream
from phyla_server.incoming import receive
from phyla_server.leaving import unless_gone
from phyla_server.openapi import ChatOperation
from phyla_server.readying import made_ready
from phyla_server.serving import Serving
from phyla_server.whole import collect

CONSEQUENCE = "falling back to prompt injection"


def chat_routes(serving: Serving) -> list[HTTPRouteHandler]:
    @post(
        ["/v1/chat/completions", "/chat/completions"],
        status_code=200,
        operation_class=ChatOperation,
        summary="Answer a conversation",
        tags=["openai"],
    )
    async def chat_completions(request: Request[Any, Any, Any]) -> Response[bytes]:
        incoming = await receive(serving, request)
        ready = await unless_gone(made_ready(serving, incoming, prepare_chat, CONSEQUENCE), request.receive)
        prepared = ready.prepared
        # Encoders come first: if a parser can't be made, nothing was submitted that would run for nobody.
        if prepared.stream:
            chunks = ChatChunks(prepared.shape)
            ticket = serving.generation.open([prepared.request], held=ready.enforced)
            return EventStream(ticket, chunks, serving.settings.keepalive_seconds, ready.headers)
        whole = WholeChat(prepared.shape)
        ticket = serving.generation.open([prepared.request], held=ready.enforced)
        body = await collect(ticket, whole, request.receive)
        return Response(dump(body), media_type="application/json", headers=ready.headers)

    return [chat_completions]
