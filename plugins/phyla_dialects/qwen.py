"""Qwen3-Coder and Qwen3.5: `<tool_call><function=f><parameter=k>raw text</parameter></function></tool_call>`.

Values are raw text, typed by the tool's schema. The outer tag may be missing: some models open with the inner one.
"""

from __future__ import annotations

from phyla.output import TextDelta

from phyla_dialects.answer import Calls
from phyla_dialects.arguments import Arguments
from phyla_dialects.hermes import json_call
from phyla_dialects.source import Source, Steps, read_name, skip_space, skip_space_before, stream_until, try_read

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION, END_FUNCTION = "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"


def qwen_calls(source: Source, calls: Calls) -> Steps[None]:
    while (opener := (yield from stream_until(source, (OPEN, FUNCTION), TextDelta))) is not None:
        source.mark()
        if not (yield from _call(source, calls, opener)):
            yield TextDelta(opener + source.since_mark())
            continue
        yield from skip_space_before(source, (CLOSE,))


def _call(source: Source, calls: Calls, opener: str) -> Steps[bool]:
    if opener == OPEN:
        yield from skip_space(source)
        if (yield from try_read(source, (FUNCTION,))) is None:
            return (yield from json_call(source, calls))
    name = yield from read_name(source, (">",))
    if name is None or name.strip(" \n\"'") not in calls.tools:
        return False
    source.take(1)
    arguments = Arguments(calls, name.strip(" \n\"'"))
    yield arguments.begin()
    yield from _parameters(source, arguments)
    return True


def _parameters(source: Source, arguments: Arguments) -> Steps[None]:
    while True:
        marker = yield from skip_space_before(source, (PARAMETER, END_FUNCTION, CLOSE))
        if marker != PARAMETER:
            if marker is not None:
                yield from arguments.close()
            return
        key = yield from read_name(source, (">",))
        if key is None:
            return
        source.take(1)
        if not (yield from arguments.parameter(source, key.strip(" \n\"'"), END_PARAMETER, _ends_parameter)):
            return


def _ends_parameter(rest: str, is_closed: bool) -> bool | None:
    # A value may itself contain the closing tag; the real one is followed by the next tag of the call.
    rest = rest.lstrip()
    followers = (PARAMETER, END_FUNCTION, CLOSE)
    if rest.startswith(followers):
        return True
    if is_closed:
        return not rest
    return None if any(follower.startswith(rest) for follower in followers) else False
