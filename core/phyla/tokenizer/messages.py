"""Chat messages in the one shape that templates expect, whatever shape a client sent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from phyla.errors import TemplateError

ROLES = ("system", "user", "assistant", "tool")
_ROLE_ALIASES = {"developer": "system", "function": "tool"}
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Kinds of parts to the member that holds their text; clients send an assistant's refusal back as a part of its own."""
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")

Message = dict[str, Any]


def normalise_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Roles, contents and tool calls made uniform; a copy that shares nothing with the input.

    `developer` is `system`; null or absent content is empty text; text parts are joined; a call's JSON arguments become
    an object; reasoning gets the names that templates read.

    Raises:
        TemplateError: no messages, an unknown role, a part that isn't text, arguments that aren't a JSON object.
    """
    if not messages:
        raise TemplateError("messages is empty: at least one is needed.")
    return [_normalised(index, message) for index, message in enumerate(messages)]


def plain_text(value: str) -> str:
    """Text that UTF-8 can carry: half a surrogate pair, which JSON can spell, becomes U+FFFD."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


def plain_data(value: Any, what: str) -> Any:
    """JSON values only, texts through `plain_text`.

    Raises:
        TemplateError: something that JSON doesn't have; `what` names where.
    """
    if isinstance(value, str):
        return plain_text(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {plain_text(str(key)): plain_data(item, what) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_data(item, what) for item in value]
    raise TemplateError(f"{what} holds a {type(value).__name__}; only JSON values can be rendered.")


def _normalised(index: int, message: Mapping[str, Any]) -> Message:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise TemplateError(f"{where} is a {type(message).__name__}, not an object with role and content.")
    role = message.get("role")
    role = _ROLE_ALIASES.get(role, role) if isinstance(role, str) else role
    if role not in ROLES:
        known = ", ".join([*ROLES, *_ROLE_ALIASES])
        raise TemplateError(f"{where} has role {role!r:.60}; known roles are {known}.")
    result: Message = {**plain_data(message, where), "role": role, "content": _content(message.get("content"), where)}
    if result.get("tool_calls"):
        result["tool_calls"] = [_call(call, where) for call in _calls(result["tool_calls"], where)]
    else:
        result.pop("tool_calls", None)
    reasoning = next((result[name] for name in _REASONING_FIELDS if result.get(name) is not None), None)
    if reasoning is not None:
        result = {"thinking": reasoning, **result, "reasoning_content": reasoning}
    return result


def _content(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return plain_text(content)
    if not isinstance(content, list | tuple):
        raise TemplateError(f"{where} has a {type(content).__name__} as content; it must be text or a list of parts.")
    return "".join(_part(part, where) for part in content)


def _part(part: Any, where: str) -> str:
    if isinstance(part, str):
        return plain_text(part)
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(kind, str) or kind not in _TEXT_PARTS:
        raise TemplateError(f"{where} has a content part of type {kind!r:.60}; this model takes text parts only.")
    text = part.get(_TEXT_PARTS[kind])
    if not isinstance(text, str):
        raise TemplateError(f"{where} has a text part without text.")
    return plain_text(text)


def _calls(calls: Any, where: str) -> list[Any]:
    if not isinstance(calls, list):
        raise TemplateError(f"{where}.tool_calls is a {type(calls).__name__}, not a list.")
    return calls


def _call(call: Any, where: str) -> Message:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise TemplateError(f"{where}.tool_calls holds a call without a function name.")
    return {**call, "function": {**function, "arguments": _arguments(function.get("arguments"), where)}}


def _arguments(arguments: Any, where: str) -> dict[str, Any]:
    """The object that a call's arguments are; clients send no arguments as empty text or null."""
    if isinstance(arguments, str) and arguments.strip():
        try:
            arguments = plain_data(json.loads(arguments), where)
        except (ValueError, RecursionError) as error:
            raise TemplateError(f"{where}.tool_calls has arguments that aren't valid JSON.") from error
    if not arguments and not isinstance(arguments, list):
        return {}
    if not isinstance(arguments, dict):
        raise TemplateError(f"{where}.tool_calls has arguments that aren't a JSON object.")
    return arguments
