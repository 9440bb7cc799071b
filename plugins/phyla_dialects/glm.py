"""GLM: `<tool_call>f` and pairs of `<arg_key>k</arg_key><arg_value>v</arg_value>`, newlines between them optional."""

from __future__ import annotations

from phyla.output import TextDelta

from phyla_dialects.answer import Calls
from phyla_dialects.arguments import Arguments
from phyla_dialects.hermes import json_call
from phyla_dialects.source import Source, Steps, peek, read_name, skip_space, skip_space_before, stream_until

OPEN, CLOSE = "<tool_call>", "</tool_call>"
KEY, END_KEY = "<arg_key>", "</arg_key>"
VALUE, END_VALUE = "<arg_value>", "</arg_value>"


def glm_calls(source: Source, calls: Calls) -> Steps[None]:
    while (yield from stream_until(source, (OPEN,), TextDelta)) is not None:
        source.mark()
        if not (yield from _call(source, calls)):
            yield TextDelta(OPEN + source.since_mark())


def _call(source: Source, calls: Calls) -> Steps[bool]:
    yield from skip_space(source)
    if (yield from peek(source, 1)) == "{":
        if not (yield from json_call(source, calls)):
            return False
        yield from skip_space_before(source, (CLOSE,))
        return True
    name = yield from read_name(source, ("\n", KEY, CLOSE))
    if name is None or name.strip() not in calls.tools:
        return False
    arguments = Arguments(calls, name.strip())
    yield arguments.begin()
    yield from _pairs(source, arguments)
    return True


def _pairs(source: Source, arguments: Arguments) -> Steps[None]:
    while (marker := (yield from skip_space_before(source, (KEY, CLOSE)))) == KEY:
        key = yield from read_name(source, (END_KEY,))
        if key is None:
            return
        source.take(len(END_KEY))
        if (yield from skip_space_before(source, (VALUE,))) is None:
            return
        if not (yield from arguments.parameter(source, key.strip(), END_VALUE)):
            return
    if marker is not None:
        yield from arguments.close()
