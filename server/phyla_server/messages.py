"""Chat messages as clients write them: what HTTP has to say about them before the renderer makes them a prompt.

Roles, contents and tool calls are made uniform by `phyla.tokenizer`, which also fits their order to the template.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phyla_server.errors import bad_request

IMAGE_PARTS = ("image", "image_url", "input_image")
AUDIO_PARTS = ("audio", "input_audio", "audio_url")
VIDEO_PARTS = ("video", "video_url")

Message = Mapping[str, Any]


def read_messages(messages: object, model_id: str) -> list[Message]:
    """The messages, with tool results named.

    Raises:
        ApiError: 400 for none, for one that isn't an object, and for media that the model can't take.
    """
    if not isinstance(messages, list) or not messages:
        raise bad_request("messages required", "messages")
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise bad_request(f"messages[{index}] must be an object", "messages")
        _refuse_media(message.get("content"), model_id)
    return _with_named_results(messages)


def _refuse_media(content: object, model_id: str) -> None:
    """A request with media is never answered from its text alone."""
    parts = content if isinstance(content, list) else []
    kinds = [part.get("type") for part in parts if isinstance(part, dict)]
    if any(kind in IMAGE_PARTS for kind in kinds):
        raise bad_request("model has no vision sidecar", "messages")
    if any(kind in VIDEO_PARTS for kind in kinds):
        raise bad_request(f"model '{model_id}' takes no video", "messages")
    if any(kind in AUDIO_PARTS for kind in kinds):
        raise bad_request(f"model '{model_id}' takes no audio: it has no audio tower", "messages")


def _with_named_results(messages: Sequence[Message]) -> list[Message]:
    """Some templates want a tool result to carry its function's name; clients send only the call's id."""
    names = {call_id: name for message in messages for call_id, name in _named_calls(message.get("tool_calls"))}
    return [
        {**message, "name": names[str(message["tool_call_id"])]}
        if message.get("role") == "tool" and "name" not in message and str(message.get("tool_call_id")) in names
        else message
        for message in messages
    ]


def _named_calls(calls: object) -> list[tuple[str, str]]:
    found = []
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str) and isinstance(call.get("id"), str):
            found.append((call["id"], name))
    return found
