"""Mistral: `[TOOL_CALLS]` and a JSON array of calls, or, in newer templates, `[TOOL_CALLS]name[ARGS]{...}`."""

from __future__ import annotations

from phyla_dialects.calls import Calls
from phyla_dialects.content import Read, read_calls
from phyla_dialects.hermes import call_of
from phyla_dialects.json_stream import read_value, stream_object
from phyla_dialects.json_text import read_json
from phyla_dialects.source import Source, Steps, peek, read_name, skip_space, try_read

OPEN, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"


def mistral_calls(source: Source, calls: Calls) -> Steps[None]:
    def call(opener: str) -> Steps[Read]:
        yield from skip_space(source)
        is_array = (yield from peek(source, 1)) == "["
        return (yield from (_array(source, calls) if is_array else _named(source, calls)))

    # Nothing closes a call here: of a broken one only the markers that could still follow its name are dropped.
    yield from read_calls(source, calls, (OPEN,), (ARGS, CALL_ID), ARGS, call)


def _array(source: Source, calls: Calls) -> Steps[Read]:
    text = yield from read_value(source)
    if text is None:
        return Read.NOTHING
    try:
        found = [call_of(one) for one in read_json(text)]
    except ValueError:
        return Read.NOTHING
    if not found or any(call is None or call[0] not in calls.tools for call in found):
        return Read.NOTHING
    for call in found:
        if call is not None:
            yield from calls.whole(*call)
    return Read.WHOLE


def _named(source: Source, calls: Calls) -> Steps[Read]:
    name = yield from read_name(source, (ARGS, CALL_ID, "{"))
    if name is None or name.strip() not in calls.tools:
        return Read.NOTHING
    if (yield from try_read(source, (CALL_ID, ARGS))) == CALL_ID:
        if (yield from read_name(source, (ARGS,))) is None:
            return Read.NOTHING
        source.take(len(ARGS))
    yield from skip_space(source)
    if (yield from peek(source, 1)) != "{":
        return Read.NOTHING
    yield calls.start(name.strip())
    if not (yield from stream_object(source, calls.arguments)):
        return Read.BROKEN
    yield calls.end()
    return Read.WHOLE
