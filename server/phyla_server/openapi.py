"""What the OpenAPI page says beyond what the handlers' signatures show: bodies, statuses, media types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from litestar.openapi.spec import OpenAPIMediaType, OpenAPIResponse, Operation, RequestBody, Schema
from litestar.openapi.spec.enums import OpenAPIType

ENDPOINTS = (
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "GET /v1/models",
    "GET /v1/models/{id}",
    "GET /v1",
    "GET /health",
    "GET /stats",
    "POST /admin/cache/clear",
    "POST /admin/cache/flush",
    "POST /admin/cache/session/close",
    "GET /schema/openapi.json",
)

STRING = Schema(type=OpenAPIType.STRING)
BOOLEAN = Schema(type=OpenAPIType.BOOLEAN)
OBJECT = Schema(type=OpenAPIType.OBJECT)
ARRAY = Schema(type=OpenAPIType.ARRAY, items=Schema())


def _integer(least: int | None = None, most: int | None = None) -> Schema:
    return Schema(type=OpenAPIType.INTEGER, minimum=least, maximum=most)


def _number(least: float | None = None, most: float | None = None) -> Schema:
    return Schema(type=OpenAPIType.NUMBER, minimum=least, maximum=most)


def _array(items: Schema, min_items: int | None = None) -> Schema:
    return Schema(type=OpenAPIType.ARRAY, items=items, min_items=min_items)


SAMPLING: Mapping[str, Schema] = {
    "model": STRING,
    "stream": BOOLEAN,
    "stream_options": Schema(type=OpenAPIType.OBJECT, properties={"include_usage": BOOLEAN}),
    "max_tokens": _integer(1),
    "max_completion_tokens": _integer(1),
    "temperature": _number(0),
    "top_p": _number(0, 1),
    "top_k": _integer(0),
    "min_p": _number(0, 1),
    "xtc_probability": _number(0, 1),
    "xtc_threshold": _number(0, 1),
    "repetition_penalty": _number(0),
    "repetition_context_size": _integer(0),
    "presence_penalty": _number(),
    "presence_context_size": _integer(0),
    "frequency_penalty": _number(),
    "frequency_context_size": _integer(0),
    "logit_bias": Schema(type=OpenAPIType.OBJECT, additional_properties=_number()),
    "seed": _integer(),
    "stop": Schema(one_of=[STRING, _array(STRING)]),
    "n": _integer(1, 8),
    "min_tokens": _integer(0),
    "ignore_eos": BOOLEAN,
    "return_tokens_as_token_ids": BOOLEAN,
    "session_id": STRING,
    "prompt_cache_key": STRING,
    "user": STRING,
    "response_format": OBJECT,
    "structured_outputs": OBJECT,
    "guided_json": Schema(one_of=[OBJECT, STRING]),
    "guided_regex": STRING,
    "guided_grammar": STRING,
    "guided_choice": _array(STRING, 1),
}

MESSAGE = Schema(
    type=OpenAPIType.OBJECT,
    required=["role"],
    properties={
        "role": Schema(type=OpenAPIType.STRING, enum=["system", "developer", "user", "assistant", "tool"]),
        "content": Schema(one_of=[STRING, _array(OBJECT), Schema(type=OpenAPIType.NULL)]),
        "tool_calls": _array(OBJECT),
        "tool_call_id": STRING,
        "name": STRING,
    },
)

CHAT = Schema(
    type=OpenAPIType.OBJECT,
    required=["messages"],
    properties={
        **SAMPLING,
        "messages": _array(MESSAGE, min_items=1),
        "logprobs": BOOLEAN,
        "top_logprobs": _integer(-1, 20),
        "tools": _array(OBJECT),
        "tool_choice": Schema(one_of=[STRING, OBJECT]),
        "chat_template_kwargs": OBJECT,
        "reasoning_effort": Schema(type=OpenAPIType.STRING, enum=["none", "minimal", "low", "medium", "high", "xhigh"]),
    },
)

PROMPT = Schema(one_of=[STRING, _array(_integer(0), 1), _array(STRING, 1), _array(_array(_integer(0), 1), 1)])
TEXT = Schema(
    type=OpenAPIType.OBJECT,
    required=["prompt"],
    properties={**SAMPLING, "prompt": PROMPT, "logprobs": _integer(0, 20), "echo": BOOLEAN, "best_of": _integer(1, 8)},
)

SESSION = Schema(type=OpenAPIType.OBJECT, required=["session_id"], properties={"session_id": STRING})

ERROR = Schema(
    type=OpenAPIType.OBJECT,
    required=["error"],
    properties={"error": Schema(type=OpenAPIType.OBJECT, required=["message"], properties={"message": STRING})},
)

EVENT = Schema(
    type=OpenAPIType.OBJECT,
    required=["data"],
    properties={"data": STRING},
    description="One event of the stream; its data is a chunk as JSON, or [DONE].",
)
"""Of a stream the schema describes each event: that is how readers of OpenAPI before 3.2 take it."""

STATUSES: Mapping[int, str] = {
    400: "The request can't be served as it stands; the message says why.",
    401: "A valid API key is needed.",
    403: "Host, Origin or key don't reach this far.",
    404: "There is no such thing.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body isn't JSON.",
    429: "Too many requests are waiting.",
    500: "The request's own work failed.",
    503: "The engine can't serve requests.",
}


@dataclass
class JsonOperation(Operation):
    """A route with JSON answers and the statuses it may give."""

    def __post_init__(self) -> None:
        answers = {str(status): _answer(status) for status in self.error_statuses()}
        self.responses = {"200": _ok(self.streams()), **answers}
        schema = self.body_schema()
        if schema is not None:
            content = {"application/json": OpenAPIMediaType(schema=schema)}
            self.request_body = RequestBody(content=content, required=True)

    def body_schema(self) -> Schema | None:
        return None

    def error_statuses(self) -> tuple[int, ...]:
        return (401, 403)

    def streams(self) -> bool:
        return False


@dataclass
class ChatOperation(JsonOperation):
    def body_schema(self) -> Schema | None:
        return CHAT

    def error_statuses(self) -> tuple[int, ...]:
        return (400, 401, 403, 408, 413, 415, 429, 500, 503)

    def streams(self) -> bool:
        return True


@dataclass
class TextOperation(ChatOperation):
    def body_schema(self) -> Schema | None:
        return TEXT


@dataclass
class ModelOperation(JsonOperation):
    def error_statuses(self) -> tuple[int, ...]:
        return (401, 403, 404)


@dataclass
class HealthOperation(JsonOperation):
    def error_statuses(self) -> tuple[int, ...]:
        return (403, 503)


@dataclass
class ClearOperation(JsonOperation):
    def error_statuses(self) -> tuple[int, ...]:
        return (401, 403, 429, 503)


@dataclass
class SessionOperation(JsonOperation):
    def body_schema(self) -> Schema | None:
        return SESSION

    def error_statuses(self) -> tuple[int, ...]:
        return (400, 401, 403, 408, 413, 415)


def _ok(streams: bool) -> OpenAPIResponse:
    content: dict[str, Any] = {"application/json": OpenAPIMediaType(schema=OBJECT)}
    if streams:
        content["text/event-stream"] = OpenAPIMediaType(schema=EVENT)
    return OpenAPIResponse(description="The answer.", content=content)


def _answer(status: int) -> OpenAPIResponse:
    return OpenAPIResponse(description=STATUSES[status], content={"application/json": OpenAPIMediaType(schema=ERROR)})
