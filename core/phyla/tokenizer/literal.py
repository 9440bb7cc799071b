"""Encoding text in which some spellings of special tokens are only text.

A twin of the tokenizer is made whose control tokens are spelt with a mark in front, a character that no text has. Where
the text means a control token the mark is put in; everywhere else the spelling is what it looks like. The library then
splits, normalises and merges as ever, so that nothing but the meant tokens differs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from threading import Lock
from typing import Any

import tokenizers

from phyla.errors import TokenizerError
from phyla.tokenizer.tokenizer import TextSpan

MARK = "\ufdd1"
"""A Unicode noncharacter: never part of interchanged text."""

_MARKUP = re.compile(r"^[<\[]\S*[>\]]$")


ALONE_CHARS = 4096
"""Texts up to this long hold the interpreter for less than a step takes."""


def encoded_ids(library: tokenizers.Tokenizer, text: str, add_special: bool = False) -> list[int]:
    """Ids of one text, whatever its length, without stopping the interpreter for long.

    `encode` keeps the interpreter's lock to its end, for seconds on a text of megabytes, and with it the event loop and
    the engine. The batch call gives it back.
    """
    if len(text) <= ALONE_CHARS:
        return list(library.encode(text, add_special_tokens=add_special).ids)
    (encoding,) = library.encode_batch_fast([text], add_special_tokens=add_special)
    return list(encoding.ids)


class LiteralEncoder:
    """Makes the marked twin when it is first needed: most prompts never spell a special token."""

    def __init__(self, library: tokenizers.Tokenizer, spellings: Mapping[str, int]) -> None:
        self._library = library
        self._spellings = spellings
        self._lock = Lock()
        self._twin: tokenizers.Tokenizer | None = None
        self._control: frozenset[str] = frozenset()
        self._pattern = longest_match([])

    def encode(self, text: str, literals: Sequence[TextSpan]) -> list[int]:
        """Ids of `text`; spellings that touch a literal span are plain text, all others are control tokens."""
        twin = self._marked_twin()
        # A mark in the text itself would let it spell control tokens.
        marked = self._marked(text.replace(MARK, "\N{REPLACEMENT CHARACTER}"), literals)
        return encoded_ids(twin, marked)

    def _marked(self, text: str, literals: Sequence[TextSpan]) -> str:
        starts = sorted((span.start, span.end) for span in literals)
        cursor = 0

        def replacement(match: re.Match[str]) -> str:
            nonlocal cursor
            while cursor < len(starts) and starts[cursor][1] <= match.start():
                cursor += 1
            touches = cursor < len(starts) and starts[cursor][0] < match.end()
            return match[0] if touches else MARK + match[0]

        return self._pattern.sub(replacement, text)

    def _marked_twin(self) -> tokenizers.Tokenizer:
        with self._lock:
            if self._twin is None:
                definition = json.loads(self._library.to_str())
                self._control = _control_spellings(definition)
                self._pattern = longest_match(self._control)
                self._twin = _marked_library(definition, self._control)
                self._check(self._twin)
            return self._twin

    def _check(self, twin: tokenizers.Tokenizer) -> None:
        for spelling in self._control:
            if twin.token_to_id(MARK + spelling) != self._spellings[spelling]:
                raise TokenizerError(f"This tokenizer can't spell {spelling!r} as plain text.")


def longest_match(spellings: Iterable[str]) -> re.Pattern[str]:
    """Matches the longest of the spellings at each place; nothing if there are none."""
    longest_first = sorted(spellings, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def _control_spellings(definition: Mapping[str, Any]) -> frozenset[str]:
    """Special tokens, and added ones that look like markup: `<tool_call>` yes, a run of newlines no."""
    merged = _merged_pieces(definition["model"])
    return frozenset(
        token["content"]
        for token in definition["added_tokens"]
        if token["special"] or (_MARKUP.match(token["content"]) and token["content"] not in merged)
    )


def _merged_pieces(model: Mapping[str, Any]) -> frozenset[str]:
    return frozenset("".join(_pair(merge)) for merge in model.get("merges") or [])


def _pair(merge: Any) -> tuple[str, str]:
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left, right


def _marked_library(definition: dict[str, Any], control: frozenset[str]) -> tokenizers.Tokenizer:
    def renamed(piece: str) -> str:
        return MARK + piece if piece in control else piece

    for token in definition["added_tokens"]:
        token["content"] = renamed(token["content"])
    model = definition["model"]
    vocab = model.get("vocab")
    if isinstance(vocab, dict):
        model["vocab"] = {renamed(piece): token_id for piece, token_id in vocab.items()}
    elif isinstance(vocab, list):
        model["vocab"] = [[renamed(piece), score] for piece, score in vocab]
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = renamed(model["unk_token"])
    if model.get("merges"):
        # A merge that ends in a control token would make it out of plain text.
        model["merges"] = [merge for merge in model["merges"] if "".join(_pair(merge)) not in control]
    definition["post_processor"] = None
    return tokenizers.Tokenizer.from_str(json.dumps(definition))
