"""Writing a call's JSON arguments while its parameters arrive one by one as raw text."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator

from phyla.output import Piece

from phyla_dialects.calls import Calls
from phyla_dialects.source import Source, Steps, partial_suffix

IsEnd = Callable[[str, bool], bool | None]
"""`(text after a closing tag, no more will come)`: whether the tag really closes; None: too early to tell."""


def always_ends(rest: str, is_closed: bool) -> bool | None:
    """For dialects whose closing tag can't be part of a value."""
    return True


class Arguments:
    """The JSON object of one call under way."""

    def __init__(self, calls: Calls, name: str) -> None:
        self._calls = calls
        self._name = name
        self._num_keys = 0

    def begin(self) -> Piece:
        return self._calls.start(self._name)

    def close(self) -> Steps[None]:
        """The end of the object and of the call."""
        yield self._calls.arguments("}" if self._num_keys else "{}")
        yield self._calls.end()

    def parameter(self, source: Source, key: str, close: str, is_end: IsEnd = always_ends) -> Steps[bool]:
        """One parameter whose raw text ends at `close`; false if the answer ends first.

        A value that the schema takes as text is passed on as it arrives; another is held back until it can be typed.
        The newlines next to the tags are the template's framing, not part of the value.
        """
        if self._calls.tools.is_text(self._name, key):
            yield self._calls.arguments(self._key(key) + '"')
        held: list[str] = []
        is_text = self._calls.tools.is_text(self._name, key)
        steps = _value_text(source, close, is_end)
        while True:
            try:
                text = next(steps)
            except StopIteration as stop:
                is_closed = bool(stop.value)
                break
            if text is None:
                yield None
            elif is_text and text:
                yield self._calls.arguments(_escaped(text))
            else:
                held.append(text)
        if is_closed:
            yield self._calls.arguments('"') if is_text else self.typed(key, "".join(held))
        return is_closed

    def typed(self, key: str, text: str) -> Piece:
        """One parameter read whole."""
        return self._calls.arguments(self._key(key) + self._calls.tools.json_value(self._name, key, text))

    def _key(self, key: str) -> str:
        self._num_keys += 1
        return ("{" if self._num_keys == 1 else ", ") + json.dumps(key, ensure_ascii=False) + ": "


def _value_text(source: Source, close: str, is_end: IsEnd) -> Generator[str | None, None, bool]:
    """Yields the value's text as it becomes certain, or None for more; returns whether the value was closed."""
    yield from _skip_newline(source)
    framed = ("\n" + close, close)
    while True:
        position = source.text.find(close)
        if position < 0:
            is_whole = source.is_closed and not source.is_cut
            yield source.take(len(source.text) - (0 if is_whole else partial_suffix(source.text, framed)))
            if source.runs_out():
                return False
            yield None
            continue
        ends = is_end(source.text[position + len(close) :], source.is_closed and not source.is_cut)
        if ends is None and source.runs_out():
            yield source.take(position).removesuffix("\n")
            return False
        if ends is None:
            yield None
        elif ends:
            yield source.take(position).removesuffix("\n")
            source.take(len(close))
            return True
        else:
            yield source.take(position + len(close))


def _skip_newline(source: Source) -> Generator[None, None, None]:
    while not source.text and not source.is_closed:
        yield None
    if source.text.startswith("\n"):
        source.take(1)


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
