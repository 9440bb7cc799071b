"""MiniCPM5: `<function name="f"><param name="k">value</param></function>`, with CDATA around values that need it."""

from __future__ import annotations

import html

from phyla.output import TextDelta

from phyla_dialects.answer import Calls
from phyla_dialects.arguments import Arguments
from phyla_dialects.source import Source, Steps, read_name, read_text, skip_space_before, stream_until, try_read

FUNCTION, END_FUNCTION = '<function name="', "</function>"
PARAM, END_PARAM = '<param name="', "</param>"
CDATA, END_CDATA = "<![CDATA[", "]]>"


def minicpm_calls(source: Source, calls: Calls) -> Steps[None]:
    while (yield from stream_until(source, (FUNCTION,), TextDelta)) is not None:
        source.mark()
        name = yield from read_name(source, ('">',))
        if name is None or name not in calls.tools:
            yield TextDelta(FUNCTION + source.since_mark())
            continue
        source.take(2)
        arguments = Arguments(calls, name)
        yield arguments.begin()
        yield from _params(source, arguments)


def _params(source: Source, arguments: Arguments) -> Steps[None]:
    while (marker := (yield from skip_space_before(source, (PARAM, END_FUNCTION)))) == PARAM:
        key = yield from read_name(source, ('">',))
        if key is None:
            return
        source.take(2)
        if not (yield from _value(source, arguments, key)):
            return
    if marker is not None:
        yield from arguments.close()


def _value(source: Source, arguments: Arguments, key: str) -> Steps[bool]:
    if (yield from try_read(source, (CDATA,))) is not None:
        is_closed = yield from arguments.parameter(source, key, END_CDATA + END_PARAM)
        return is_closed
    text = yield from read_text(source, END_PARAM)
    if text is None:
        return False
    yield arguments.typed(key, html.unescape(text))
    return True
