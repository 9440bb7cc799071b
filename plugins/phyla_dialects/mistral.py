"""Mistral: `[TOOL_CALLS]` and a JSON array of calls, or, in newer templates, `[TOOL_CALLS]name[ARGS]{...}`."""

from __future__ import annotations

from phyla.output import TextDelta

from phyla_dialects.answer import Calls
from phyla_dialects.hermes import call_of
from phyla_dialects.json_stream import read_value, stream_object
from phyla_dialects.json_text import read_json
from phyla_dialects.source import Source, Steps, peek, read_name, skip_space, stream_until, try_read

OPEN, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"


def mistral_calls(source: Source, calls: Calls) -> Steps[None]:
    while (yield from stream_until(source, (OPEN,), TextDelta)) is not None:
        source.mark()
        yield from skip_space(source)
        is_array = (yield from peek(source, 1)) == "["
        done = yield from (_array(source, calls) if is_array else _named(source, calls))
        if not done:
            yield TextDelta(OPEN + source.since_mark())


def _array(source: Source, calls: Calls) -> Steps[bool]:
    text = yield from read_value(source)
    if text is None:
        return False
    try:
        found = [call_of(one) for one in read_json(text)]
    except ValueError:
        return False
    if not found or any(call is None or call[0] not in calls.tools for call in found):
        return False
    for call in found:
        if call is not None:
            yield from calls.whole(*call)
    return True


def _named(source: Source, calls: Calls) -> Steps[bool]:
    name = yield from read_name(source, (ARGS, CALL_ID, "{"))
    if name is None or name.strip() not in calls.tools:
        return False
    if (yield from try_read(source, (CALL_ID,))) is not None and (yield from read_name(source, (ARGS,))) is None:
        return False
    yield from try_read(source, (ARGS,))
    yield from skip_space(source)
    if (yield from peek(source, 1)) != "{":
        return False
    yield calls.start(name.strip())
    if (yield from stream_object(source, calls.arguments)):
        yield calls.end()
    return True
