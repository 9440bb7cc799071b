"""Passing a JSON object on while it arrives, and no further than it is valid.

Once an argument has been streamed it can't be taken back, so every character is checked before it leaves.
"""

from __future__ import annotations

from collections.abc import Callable

from phyla.output import Piece

from phyla_dialects.source import Source, Steps

_SPACE = " \t\n\r"
_LITERALS = {"t": "true", "f": "false", "n": "null"}
_ESCAPES = '"\\/bfnrtu'


class InvalidJson(Exception):
    """The next character can't go on the object."""


class ObjectScanner:
    """Checks one JSON object character by character.

    `accept` raises InvalidJson at the first character that can't follow; `is_complete` once the object closed.
    """

    def __init__(self) -> None:
        self._stack: list[str] = []
        self._expect = "object"
        self._string_is_key = False
        self._pending = ""
        self.is_complete = False

    @property
    def depth(self) -> int:
        """Objects and arrays that are open."""
        return len(self._stack)

    def accept(self, char: str) -> None:
        if self._expect in ("string", "escape", "hex"):
            self._in_string(char)
        elif self._expect == "literal":
            self._in_literal(char)
        elif self._expect == "number":
            self._in_number(char)
        elif char not in _SPACE:
            self._between(char)

    def _in_string(self, char: str) -> None:
        if self._expect == "escape":
            _require(char in _ESCAPES)
            self._pending = "hhhh" if char == "u" else ""
            self._expect = "hex" if char == "u" else "string"
        elif self._expect == "hex":
            _require(char in "0123456789abcdefABCDEF")
            self._pending = self._pending[1:]
            self._expect = "hex" if self._pending else "string"
        elif char == "\\":
            self._expect = "escape"
        elif char == '"':
            self._expect = "colon" if self._string_is_key else "after"
        else:
            _require(char >= " ")

    def _in_literal(self, char: str) -> None:
        _require(char == self._pending[0])
        self._pending = self._pending[1:]
        if not self._pending:
            self._expect = "after"

    def _in_number(self, char: str) -> None:
        if char in "0123456789+-.eE":
            self._pending += char
            return
        _require(_is_number(self._pending))
        self._expect = "after"
        self.accept(char)

    def _between(self, char: str) -> None:
        expect = self._expect
        if expect == "object":
            _require(char == "{")
            self._open("{")
        elif expect in ("key", "key or end"):
            if char == "}" and expect == "key or end":
                self._close("{")
                return
            _require(char == '"')
            self._string_is_key, self._expect = True, "string"
        elif expect == "colon":
            _require(char == ":")
            self._expect = "value"
        elif expect == "after":
            self._after_value(char)
        else:
            self._value(char)

    def _value(self, char: str) -> None:
        if char == "]" and self._expect == "value or end":
            self._close("[")
        elif char in "{[":
            self._open(char)
        elif char == '"':
            self._string_is_key, self._expect = False, "string"
        elif char in _LITERALS:
            self._pending, self._expect = _LITERALS[char][1:], "literal"
        else:
            _require(char in "-0123456789")
            self._pending, self._expect = char, "number"

    def _after_value(self, char: str) -> None:
        top = self._stack[-1]
        if char == ",":
            self._expect = "key" if top == "{" else "value"
        else:
            _require(char == ("}" if top == "{" else "]"))
            self._close(top)

    def _open(self, bracket: str) -> None:
        self._stack.append(bracket)
        self._expect = "key or end" if bracket == "{" else "value or end"

    def _close(self, bracket: str) -> None:
        _require(bool(self._stack) and self._stack[-1] == bracket)
        self._stack.pop()
        self._expect = "after"
        self.is_complete = not self._stack


def stream_object(source: Source, wrap: Callable[[str], Piece]) -> Steps[bool]:
    """Pass one JSON object on as it arrives: true if it was complete, false where it stopped being valid."""
    scanner = ObjectScanner()
    while True:
        num_valid, is_valid = _scan(scanner, source.text)
        if num_valid:
            yield wrap(source.take(num_valid))
        source.has_run_out = False
        if scanner.is_complete or not is_valid or source.runs_out():
            return scanner.is_complete
        yield None


def read_value(source: Source) -> Steps[str | None]:
    """Hold back one JSON object or array, whole: its text, or None if it is invalid or cut short."""
    opening = source.text[:1]
    scanner = ObjectScanner()
    if opening == "[":
        # An array is scanned as the value of an object's only key.
        for char in '{"":':
            scanner.accept(char)
    length = 0
    while True:
        for char in source.text[length:]:
            try:
                scanner.accept(char)
            except InvalidJson:
                source.has_run_out = False
                return None
            length += 1
            if scanner.is_complete or (opening == "[" and scanner.depth == 1):
                return source.take(length)
        if source.runs_out():
            return None
        yield None


def _scan(scanner: ObjectScanner, text: str) -> tuple[int, bool]:
    for position, char in enumerate(text):
        try:
            scanner.accept(char)
        except InvalidJson:
            return position, False
        if scanner.is_complete:
            return position + 1, True
    return len(text), True


def _is_number(text: str) -> bool:
    digits = text.removeprefix("-")
    whole = digits.split(".")[0].split("e")[0].split("E")[0]
    if not whole or (len(whole) > 1 and whole[0] == "0"):
        return False
    try:
        float(text)
    except ValueError:
        return False
    return not digits.endswith(".") and ".e" not in digits.lower()


def _require(condition: bool) -> None:
    if not condition:
        raise InvalidJson
