"""Gemma 4: special tokens around `call:name{key:value,...}`, where strings stand between quote tokens.

Keys are bare and may be anything up to the colon; strings are raw, without escapes. The call is read whole: its values
are typed by their own syntax.
"""

from __future__ import annotations

from typing import Any

from phyla_dialects.calls import Calls
from phyla_dialects.content import Read, read_calls
from phyla_dialects.json_text import read_json, write_json
from phyla_dialects.source import Source, Steps, read_text

OPEN, CLOSE, QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
GEMMA_SPECIALS = (OPEN, CLOSE, QUOTE, "<|channel>", "<channel|>")


class NotACall(Exception):
    """The segment doesn't follow the grammar."""


def gemma_calls(source: Source, calls: Calls) -> Steps[None]:
    sentinels = calls.sentinels
    opener, closer, quote = (sentinels[spelling] for spelling in (OPEN, CLOSE, QUOTE))

    def call(_: str) -> Steps[Read]:
        text = yield from read_text(source, closer)
        reader = Segment(source.text if text is None else text, quote)
        is_cut = text is None and source.is_cut
        is_complete = reader.read()
        if not reader.found or not (is_complete or is_cut) or any(name not in calls.tools for name, _ in reader.found):
            return Read.NOTHING
        if text is None:
            source.take(len(source.text))
        for name, arguments in reader.found[: reader.num_whole]:
            yield from calls.whole(name, write_json(arguments))
        for name, arguments in reader.found[reader.num_whole :]:
            # As far as it came: the pairs that are complete, and no end.
            yield calls.start(name)
            yield calls.arguments(write_json(arguments)[:-1])
        return Read.WHOLE

    yield from read_calls(source, calls, (opener,), (closer,), closer, call)


class Segment:
    """Recursive descent over one segment; positions only move forward."""

    def __init__(self, text: str, quote: str) -> None:
        self._text = text
        self._quote = quote
        self._at = 0
        self.found: list[tuple[str, dict[str, Any]]] = []
        """Names and arguments; of a call that ends too early, as far as they came."""

        self.num_whole = 0
        """How many of them are complete."""

    def read(self) -> bool:
        """Find the segment's calls: whether they are all that it holds."""
        try:
            self._calls()
        except (NotACall, RecursionError):
            return False
        return True

    def _calls(self) -> None:
        while self._peek():
            self._expect("call:")
            name = self._until("{").strip()
            arguments: dict[str, Any] = {}
            self.found.append((name, arguments))
            self._object(arguments)
            self.num_whole += 1

    def _object(self, values: dict[str, Any]) -> dict[str, Any]:
        self._expect("{")
        while self._peek() != "}":
            key = self._string() if self._peek() == self._quote else self._until(":").strip().strip('"')
            self._expect(":")
            values[key] = self._value()
            if self._peek() == ",":
                self._at += 1
        self._expect("}")
        return values

    def _array(self) -> list[Any]:
        self._expect("[")
        values = []
        while self._peek() != "]":
            values.append(self._value())
            if self._peek() == ",":
                self._at += 1
        self._expect("]")
        return values

    def _value(self) -> Any:
        start = self._peek()
        if start == "{":
            return self._object({})
        if start == "[":
            return self._array()
        if start == self._quote:
            return self._string()
        return self._bare()

    def _string(self) -> str:
        self._expect(self._quote)
        text = self._until(self._quote)
        self._expect(self._quote)
        return text

    def _bare(self) -> Any:
        end = self._at
        while end < len(self._text) and self._text[end] not in ",}]":
            end += 1
        if end == len(self._text):
            raise NotACall
        text, self._at = self._text[self._at : end].strip(), end
        try:
            return read_json(text)
        except ValueError:
            if not text:
                raise NotACall from None
            return text.strip('"')

    def _until(self, end: str) -> str:
        stop = self._text.find(end, self._at)
        if stop < 0:
            raise NotACall
        text, self._at = self._text[self._at : stop], stop
        return text

    def _expect(self, what: str) -> None:
        self._peek()
        if not self._text.startswith(what, self._at):
            raise NotACall
        self._at += len(what)

    def _peek(self) -> str:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1
        return self._text[self._at : self._at + 1]
