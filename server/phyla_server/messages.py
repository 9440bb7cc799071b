"""Chat messages as clients write them, made into what chat templates expect.

Policy on roles: `developer` is `system`; a leading run of system messages becomes one; everything else is rendered as
sent. Only if the template refuses that order is it rendered again `folded`: later system messages and neighbours of
one role are merged into user and assistant turns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from phyla_server.body import check_values
from phyla_server.errors import ApiError, bad_request

ROLES = ("system", "developer", "user", "assistant", "tool")
TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
IMAGE_PARTS = ("image", "image_url", "input_image")
AUDIO_PARTS = ("audio", "input_audio", "audio_url")
VIDEO_PARTS = ("video", "video_url")

Message = dict[str, Any]


def normalise(messages: object, model_id: str) -> list[Message]:
    """Checked messages with text content.

    Raises:
        ApiError: 400 naming the message by its position.
    """
    if not isinstance(messages, list) or not messages:
        raise bad_request("messages required", "messages")
    done = [_one(index, message, model_id) for index, message in enumerate(messages)]
    return _name_tool_results(_join_leading_system(done))


def fold(messages: Sequence[Message]) -> list[Message]:
    """The same conversation for templates that want strict turns: later system text becomes the user's, and
    neighbours of one role become one message."""
    first, rest = list(messages[:1]), messages[1:]
    turned = first + [message | {"role": "user"} if message["role"] == "system" else message for message in rest]
    merged: list[Message] = []
    for role, group in groupby(turned, key=lambda message: message["role"]):
        run = list(group)
        merged += run if role == "tool" else [_merge(run)]
    return merged


def _one(index: int, message: object, model_id: str) -> Message:
    if not isinstance(message, dict):
        raise bad_request(f"messages[{index}] must be an object", "messages")
    role = message.get("role")
    if role not in ROLES:
        raise bad_request(f"messages[{index}].role must be one of {', '.join(map(repr, ROLES))}", "messages")
    done: Message = {"role": "system" if role == "developer" else role}
    done["content"] = _content(index, message.get("content"), model_id)
    if role == "assistant":
        done |= _assistant_members(index, message)
    for name in ("name", "tool_call_id"):
        if isinstance(message.get(name), str):
            done[name] = message[name]
    return done


def _content(index: int, content: object, model_id: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad_request(f"messages[{index}].content must be a string, a list of parts or null", "messages")
    return "".join(_part(index, part, model_id) for part in content)


def _part(index: int, part: object, model_id: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise bad_request(f"messages[{index}].content holds a part that isn't an object", "messages")
    kind = part.get("type")
    if kind in IMAGE_PARTS:
        raise bad_request("model has no vision sidecar", "messages")
    if kind in AUDIO_PARTS:
        raise bad_request(f"model '{model_id}' takes no audio: it has no audio tower", "messages")
    if kind in VIDEO_PARTS:
        raise bad_request(f"model '{model_id}' takes no video", "messages")
    text = part.get("text", part.get("refusal"))
    if (kind in TEXT_PARTS or kind is None) and isinstance(text, str):
        return text
    raise bad_request(f"messages[{index}].content holds a part of unknown type {str(kind)[:40]!r}", "messages")


def _assistant_members(index: int, message: Mapping[str, Any]) -> Message:
    members: Message = {}
    reasoning = message.get("reasoning_content", message.get("reasoning"))
    if isinstance(reasoning, str) and reasoning:
        members["reasoning_content"] = reasoning
    calls = message.get("tool_calls")
    if calls is None or calls == []:
        return members
    if not isinstance(calls, list):
        raise bad_request(f"messages[{index}].tool_calls must be a list", "messages")
    return members | {"tool_calls": [_call(index, call) for call in calls]}


def _call(index: int, call: object) -> Message:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise bad_request(f"messages[{index}].tool_calls holds a call without function.name", "messages")
    arguments = function.get("arguments")
    done: Message = {"type": "function", "function": {"name": function["name"], "arguments": _arguments(arguments)}}
    if isinstance(call.get("id"), str):
        done["id"] = call["id"]
    return done


def _arguments(arguments: object) -> dict[str, Any]:
    if arguments is None or arguments == "":
        return {}
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError) as error:
        raise _bad_arguments() from error
    if not isinstance(value, dict):
        raise _bad_arguments()
    check_values(value)
    return value


def _bad_arguments() -> ApiError:
    return bad_request("prompt build failed: tool call arguments must be a JSON object", "messages")


def _join_leading_system(messages: list[Message]) -> list[Message]:
    num_leading = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    if num_leading < 2:
        return messages
    return [_merge(messages[:num_leading]), *messages[num_leading:]]


def _merge(run: Sequence[Message]) -> Message:
    merged = dict(run[0])
    merged["content"] = "\n\n".join(one["content"] for one in run if one["content"])
    calls = [call for one in run for call in one.get("tool_calls", ())]
    return merged | ({"tool_calls": calls} if calls else {})


def _name_tool_results(messages: list[Message]) -> list[Message]:
    """Some templates want a tool result to carry its function's name; clients send only the call's id."""
    names = {
        call["id"]: call["function"]["name"]
        for message in messages
        for call in message.get("tool_calls", ())
        if "id" in call
    }
    return [
        message | {"name": names[message["tool_call_id"]]}
        if message["role"] == "tool" and "name" not in message and message.get("tool_call_id") in names
        else message
        for message in messages
    ]
