"""GLM: `<tool_call>f` and pairs of `<arg_key>k</arg_key><arg_value>v</arg_value>`, newlines between them optional."""

from __future__ import annotations

from phyla_dialects.arguments import Arguments
from phyla_dialects.calls import Calls
from phyla_dialects.content import Read, read_calls
from phyla_dialects.hermes import json_call
from phyla_dialects.source import Source, Steps, peek, read_name, skip_space, skip_space_before

OPEN, CLOSE = "<tool_call>", "</tool_call>"
KEY, END_KEY = "<arg_key>", "</arg_key>"
VALUE, END_VALUE = "<arg_value>", "</arg_value>"


def glm_calls(source: Source, calls: Calls) -> Steps[None]:
    def call(opener: str) -> Steps[Read]:
        return (yield from _call(source, calls))

    yield from read_calls(source, calls, (OPEN,), (KEY, END_KEY, VALUE, END_VALUE, CLOSE), CLOSE, call)


def _call(source: Source, calls: Calls) -> Steps[Read]:
    yield from skip_space(source)
    if (yield from peek(source, 1)) == "{":
        read = yield from json_call(source, calls)
        if read is Read.WHOLE:
            yield from skip_space_before(source, (CLOSE,))
        return read
    name = yield from read_name(source, ("\n", KEY, CLOSE))
    if name is None or name.strip() not in calls.tools:
        return Read.NOTHING
    arguments = Arguments(calls, name.strip())
    yield arguments.begin()
    return (yield from _pairs(source, arguments))


def _pairs(source: Source, arguments: Arguments) -> Steps[Read]:
    while (marker := (yield from skip_space_before(source, (KEY, CLOSE)))) == KEY:
        key = yield from read_name(source, (END_KEY,))
        if key is None:
            return Read.BROKEN
        source.take(len(END_KEY))
        if (yield from skip_space_before(source, (VALUE,))) is None:
            return Read.BROKEN
        if not (yield from arguments.parameter(source, key.strip(), END_VALUE)):
            return Read.BROKEN
    if marker is None:
        return Read.BROKEN
    yield from arguments.close()
    return Read.WHOLE
