"""GET /v1, /v1/models and /v1/models/{id}."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from phyla.sampling.settings import SamplingSettings

import phyla_server
from phyla_server.encoder import dump
from phyla_server.errors import ApiError
from phyla_server.openapi import ENDPOINTS, JsonOperation, ModelOperation
from phyla_server.serving import Serving

OWNED_BY = "phyla"


def model_routes(serving: Serving) -> list[HTTPRouteHandler]:
    @get("/v1", operation_class=JsonOperation, summary="What this server is and serves", tags=["discovery"])
    async def index() -> Response[bytes]:
        body = {
            "name": OWNED_BY,
            "version": phyla_server.version(),
            "model": serving.model.model_id,
            "endpoints": list(ENDPOINTS),
        }
        return Response(dump(body), media_type="application/json")

    @get("/v1/models", operation_class=JsonOperation, summary="List the models", tags=["openai"])
    async def list_models() -> Response[bytes]:
        listed = await asyncio.to_thread(model_objects, serving)
        return Response(dump({"object": "list", "data": listed}), media_type="application/json")

    # `path`: ids hold slashes. The id is only ever compared with those that are listed.
    @get("/v1/models/{model_id:path}", operation_class=ModelOperation, summary="Describe one model", tags=["openai"])
    async def retrieve_model(model_id: FromPath[str]) -> Response[bytes]:
        wanted = str(model_id).removeprefix("/")
        listed = await asyncio.to_thread(model_objects, serving)
        found = next((one for one in listed if one["id"] == wanted), None)
        if found is None:
            raise ApiError(404, f"the model '{wanted[:128]}' does not exist", code="model_not_found", param="model")
        return Response(dump(found), media_type="application/json")

    return [index, list_models, retrieve_model]


def model_objects(serving: Serving) -> Sequence[Mapping[str, Any]]:
    """The served model first, then what else is here. Not on the event loop: it asks the template, and the disk."""
    model, facts, chosen = serving.model, serving.model.facts, serving.all_settings.section(SamplingSettings)
    generation = facts.sampling_defaults
    top_k = _first(chosen.top_k, generation.get("top_k"))
    capabilities = {
        "chat_completions": model.chats,
        "text_completions": True,
        "streaming": True,
        "tools": model.offers_tools,
        "structured_output": model.enforces_constraints,
        "logprobs": True,
        "embeddings": False,
        "vision": False,
        "audio": False,
        "anthropic_messages": False,
        "responses": False,
        "adapters": False,
        "training": False,
    }
    served = {
        "id": model.model_id,
        "object": "model",
        "created": int(serving.started_at),
        "owned_by": OWNED_BY,
        "context_window": facts.context_limit,
        "reasoning": model.reasoning is not None,
        "vision": False,
        "audio": False,
        "batch_mode": _batch_mode(serving),
        "tools": model.offers_tools,
        "structured_output": model.enforces_constraints,
        "embeddings": False,
        "adapters": False,
        "training": False,
        # No family here has attention that selects what it reads.
        "dsa": False,
        "mtp": model.method == "mtp",
        "capabilities": capabilities,
        "gen_defaults": {
            "temperature": _first(chosen.temperature, generation.get("temperature")),
            "top_p": _first(chosen.top_p, generation.get("top_p")),
            "top_k": None if top_k is None else int(top_k),
        },
    }
    return [served, *(one for one in serving.others.entries() if one["id"] != model.model_id)]


def _batch_mode(serving: Serving) -> str:
    batch = serving.model.engine.stats().get("batch", {})
    return str(batch.get("mode", "off"))


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
