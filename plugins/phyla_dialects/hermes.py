"""Hermes and Qwen2/3: `<tool_call>{"name": "f", "arguments": {...}}</tool_call>`.

The object may also nest both under `function`, spell `parameters`, or carry the arguments as a JSON string.
"""

from __future__ import annotations

import re
from typing import Any

from phyla_dialects.calls import Calls
from phyla_dialects.content import Read, read_calls
from phyla_dialects.json_stream import read_value, stream_object
from phyla_dialects.json_text import read_json, write_json
from phyla_dialects.source import Source, Steps, skip_space, skip_space_before

OPEN, CLOSE = "<tool_call>", "</tool_call>"

NAME_FIRST = re.compile(r'\{\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
"""The usual order: with the name known first, the arguments can be streamed."""

_HEAD_CHARS = 256
"""Characters within which the head of a call must show its order; a longer one is read whole."""


def hermes_calls(source: Source, calls: Calls) -> Steps[None]:
    def call(opener: str) -> Steps[Read]:
        yield from skip_space(source)
        read = yield from json_call(source, calls)
        if read is Read.WHOLE:
            yield from skip_space_before(source, (CLOSE,))
        return read

    yield from read_calls(source, calls, (OPEN,), (CLOSE,), CLOSE, call)


def json_call(source: Source, calls: Calls) -> Steps[Read]:
    """One call as a JSON object; it must name an offered tool and be well formed."""
    head = yield from _name_first(source)
    if head is not None and head.group(1) in calls.tools:
        source.take(head.end())
        yield calls.start(head.group(1))
        if not (yield from stream_object(source, calls.arguments)):
            return Read.BROKEN
        yield calls.end()
        yield from skip_space_before(source, ("}",))
        return Read.WHOLE
    text = yield from read_value(source)
    call = parsed_call(text) if text is not None else None
    if call is None or call[0] not in calls.tools:
        return Read.NOTHING
    yield from calls.whole(*call)
    return Read.WHOLE


def parsed_call(text: str) -> tuple[str, str] | None:
    """(name, arguments as a JSON object) of a call read whole, or None if it is none."""
    try:
        return call_of(read_json(text))
    except ValueError:
        return None


def call_of(call: Any) -> tuple[str, str] | None:
    """As `parsed_call`, of JSON that was read.

    Raises:
        ValueError: the arguments are a string that isn't JSON.
    """
    call = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(call, dict):
        return None
    name, arguments = call.get("name"), call.get("arguments", call.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = read_json(arguments)
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    return name, write_json(arguments)


def _name_first(source: Source) -> Steps[re.Match[str] | None]:
    while True:
        head = NAME_FIRST.match(source.text[:_HEAD_CHARS])
        is_decided = len(source.text) >= _HEAD_CHARS or CLOSE in source.text or source.text[:1] not in ("", "{")
        if head is not None or source.is_closed or is_decided:
            return head
        yield None
