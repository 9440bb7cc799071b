"""Qwen3-Coder and Qwen3.5: `<tool_call><function=f><parameter=k>raw text</parameter></function></tool_call>`.

Values are raw text, typed by the tool's schema. The outer tag may be missing: some models open with the inner one.
"""

from __future__ import annotations

from phyla_dialects.arguments import Arguments
from phyla_dialects.calls import Calls
from phyla_dialects.content import Read, read_calls
from phyla_dialects.hermes import json_call
from phyla_dialects.source import Source, Steps, read_name, skip_space, skip_space_before, try_read

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION, END_FUNCTION = "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"


def qwen_calls(source: Source, calls: Calls) -> Steps[None]:
    def call(opener: str) -> Steps[Read]:
        read = yield from _call(source, calls, opener)
        if read is Read.WHOLE:
            yield from skip_space_before(source, (CLOSE,))
        return read

    inner = (PARAMETER, END_PARAMETER, END_FUNCTION, CLOSE)
    yield from read_calls(source, calls, (OPEN, FUNCTION), inner, CLOSE, call)


def _call(source: Source, calls: Calls, opener: str) -> Steps[Read]:
    if opener == OPEN:
        yield from skip_space(source)
        if (yield from try_read(source, (FUNCTION,))) is None:
            return Read.NOTHING if source.has_run_out else (yield from json_call(source, calls))
    name = yield from read_name(source, (">",))
    if name is None or name.strip(" \n\"'") not in calls.tools:
        return Read.NOTHING
    source.take(1)
    arguments = Arguments(calls, name.strip(" \n\"'"))
    yield arguments.begin()
    return (yield from _parameters(source, arguments))


def _parameters(source: Source, arguments: Arguments) -> Steps[Read]:
    while True:
        marker = yield from skip_space_before(source, (PARAMETER, END_FUNCTION, CLOSE))
        if marker is None:
            return Read.BROKEN
        if marker != PARAMETER:
            yield from arguments.close()
            return Read.WHOLE
        key = yield from read_name(source, (">",))
        if key is None:
            return Read.BROKEN
        source.take(1)
        if not (yield from arguments.parameter(source, key.strip(" \n\"'"), END_PARAMETER, _ends_parameter)):
            return Read.BROKEN


def _ends_parameter(rest: str, is_closed: bool) -> bool | None:
    # A value may itself contain the closing tag; the real one is followed by the next tag of the call.
    rest = rest.lstrip()
    followers = (PARAMETER, END_FUNCTION, CLOSE)
    if rest.startswith(followers):
        return True
    if is_closed:
        return not rest
    return None if any(follower.startswith(rest) for follower in followers) else False
