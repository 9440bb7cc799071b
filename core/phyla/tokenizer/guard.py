"""Keeping strings from outside apart from the template's own: a spelling of a special token in them stays text.

A guard character is put inside each such spelling before rendering and taken out afterwards; where it stood is where
the text is literal.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from phyla.tokenizer.literal import longest_match
from phyla.tokenizer.tokenizer import TextSpan

GUARD = "\ufdd0"
"""A Unicode noncharacter: never part of interchanged text."""

_STRAY = "\N{REPLACEMENT CHARACTER}"
_ESCAPED_GUARD = "\\ufdd0"
"""As a template's `tojson(ensure_ascii=True)` spells it."""


@dataclass(frozen=True)
class CleanText:
    """A rendered text without guards."""

    text: str
    literals: tuple[TextSpan, ...]
    """In order, one character each."""

    def is_literal(self, start: int, end: int) -> bool:
        """Whether characters [start, end) touch a literal span."""
        index = bisect_right(self.literals, start, key=lambda literal: literal.end)
        return index < len(self.literals) and self.literals[index].start < end


class SpellingGuard:
    """Guards one set of spellings."""

    def __init__(self, spellings: Iterable[str]) -> None:
        # A single character can't be split, and is no control markup either.
        known = [spelling for spelling in spellings if len(spelling) > 1]
        self._pattern = longest_match(known)
        self._firsts = {spelling[0] for spelling in known}
        self._prefixes = {spelling[:end] for spelling in known for end in range(1, len(spelling))}
        self._longest = max(map(len, known), default=0)

    def guarded(self, value: Any) -> Any:
        """A copy of JSON data with every text guarded, keys included."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict):
            return {self._text(key): self.guarded(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.guarded(item) for item in value]
        return value

    def _text(self, text: str) -> str:
        guarded = self._pattern.sub(_split, text.replace(GUARD, _STRAY))
        # The end could be completed by what the template writes next.
        for length in range(min(self._longest - 1, len(guarded)), 0, -1):
            if guarded[-length] in self._firsts and guarded[-length:] in self._prefixes:
                return f"{guarded[:-length]}{guarded[-length]}{GUARD}{guarded[len(guarded) - length + 1 :]}"
        return guarded


def without_guards(text: str) -> CleanText:
    """Take the guards out; the character before each is literal, and so is every spelling that it is part of."""
    if GUARD not in text and _ESCAPED_GUARD not in text:
        return CleanText(text, ())
    pieces = re.split(f"{GUARD}|{re.escape(_ESCAPED_GUARD)}", text)
    literals: list[TextSpan] = []
    end = 0
    for piece in pieces[:-1]:
        end += len(piece)
        literals.append(TextSpan(max(end - 1, 0), end))
    return CleanText("".join(pieces), tuple(literals))


def _split(match: re.Match[str]) -> str:
    spelling = match[0]
    return f"{spelling[0]}{GUARD}{spelling[1:]}"
