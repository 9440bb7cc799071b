"""MiniCPM5: `<function name="f"><param name="k">value</param></function>`, with CDATA around values that need it."""

from __future__ import annotations

import html

from phyla_dialects.arguments import Arguments
from phyla_dialects.calls import Calls
from phyla_dialects.content import Read, read_calls
from phyla_dialects.source import Source, Steps, read_name, read_text, skip_space_before, try_read

FUNCTION, END_FUNCTION = '<function name="', "</function>"
PARAM, END_PARAM = '<param name="', "</param>"
CDATA, END_CDATA = "<![CDATA[", "]]>"


def minicpm_calls(source: Source, calls: Calls) -> Steps[None]:
    def call(opener: str) -> Steps[Read]:
        name = yield from read_name(source, ('">',))
        if name is None or name not in calls.tools:
            return Read.NOTHING
        source.take(2)
        arguments = Arguments(calls, name)
        yield arguments.begin()
        return (yield from _params(source, arguments))

    yield from read_calls(
        source, calls, (FUNCTION,), (PARAM, END_PARAM, CDATA, END_CDATA, END_FUNCTION), END_FUNCTION, call
    )


def _params(source: Source, arguments: Arguments) -> Steps[Read]:
    while (marker := (yield from skip_space_before(source, (PARAM, END_FUNCTION)))) == PARAM:
        key = yield from read_name(source, ('">',))
        if key is None:
            return Read.BROKEN
        source.take(2)
        if not (yield from _value(source, arguments, key)):
            return Read.BROKEN
    if marker is None:
        return Read.BROKEN
    yield from arguments.close()
    return Read.WHOLE


def _value(source: Source, arguments: Arguments, key: str) -> Steps[bool]:
    if (yield from try_read(source, (CDATA,))) is not None:
        is_closed = yield from arguments.parameter(source, key, END_CDATA + END_PARAM)
        return is_closed
    text = yield from read_text(source, END_PARAM)
    if text is None:
        return False
    yield arguments.typed(key, html.unescape(text))
    return True
