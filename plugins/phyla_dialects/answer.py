"""One answer: reasoning first, then content with calls in it, whatever the dialect of the calls."""

from __future__ import annotations

from collections.abc import Callable

from phyla.output import ParserContext, Piece, ReasoningDelta, TextDelta

from phyla_dialects.calls import Calls
from phyla_dialects.source import Source, Steps, skip_space, stream_until, try_read
from phyla_dialects.tools import OfferedTools

_FIRST_SENTINEL = 0xFDD0
"""Unicode's noncharacters: they stand for a dialect's special tokens inside the text, where no model text can be."""


CallGrammar = Callable[[Source, Calls], Steps[None]]
"""Reads content to the end of the answer: text pieces, and calls where the dialect's markers stand."""


class AnswerParser:
    """Runs a dialect's grammar over one answer.

    Text after reasoning has ended and before it began goes through the call grammar only if tools were offered:
    without any, markup is plain text. Special tokens that the dialect has no use for are dropped.
    """

    def __init__(self, context: ParserContext, calls: CallGrammar | None, specials: tuple[str, ...] = ()) -> None:
        self._source = Source()
        self._context = context
        self._sentinels = {spelling: chr(_FIRST_SENTINEL + index) for index, spelling in enumerate(specials)}
        self._spellings = {sentinel: spelling for spelling, sentinel in self._sentinels.items()}
        self._calls = Calls(OfferedTools(context.tools), context.tells_whole_calls, sentinels=self._sentinels)
        self._grammar = calls if context.tools else None
        self._steps = self._answer()

    def feed(self, text: str, special: bool = False) -> list[Piece]:
        if special:
            text = self._sentinels.get(text, text if self._is_markup(text) else "")
        elif self._sentinels:
            text = "".join(char if char not in self._spellings else "\ufffd" for char in text)
        self._source.add(text)
        return self._run()

    def finish(self, is_cut: bool = False) -> list[Piece]:
        self._source.close(is_cut)
        return self._run()

    def _run(self) -> list[Piece]:
        pieces: list[Piece] = []
        for piece in self._steps:
            if piece is None:
                break
            pieces.append(self._spelt(piece))
        return [piece for piece in pieces if piece != TextDelta("") and piece != ReasoningDelta("")]

    def _answer(self) -> Steps[None]:
        yield from self._reasoning()
        if self._grammar is not None:
            yield from self._grammar(self._source, self._calls)
        else:
            yield from stream_until(self._source, (), TextDelta)

    def _reasoning(self) -> Steps[None]:
        start, end = self._marker(self._context.reasoning_start), self._marker(self._context.reasoning_end)
        if not start or not end:
            return
        if not self._context.starts_in_reasoning:
            # Only an answer that begins with the marker reasons: further on, it is a tag the model writes about.
            self._source.mark()
            yield from skip_space(self._source)
            if (yield from try_read(self._source, (start,))) is None:
                yield TextDelta(self._source.since_mark())
                if len(self._source.text) > 1:
                    self._source.drop_unfinished()
                return
            if start in self._spellings:
                yield from _skip_channel_name(self._source, end)
        yield from stream_until(self._source, (end,), ReasoningDelta)

    def _marker(self, spelling: str | None) -> str | None:
        return self._sentinels.get(spelling, spelling) if spelling else None

    def _is_markup(self, text: str) -> bool:
        # The pieces of a marker may be special tokens (`<function` in `<function name="f">`).
        known = (self._context.reasoning_start, self._context.reasoning_end)
        return text in known or text.strip("<>/[]|=") in _MARKUP_WORDS

    def _spelt(self, piece: Piece) -> Piece:
        if not self._spellings or not isinstance(piece, TextDelta | ReasoningDelta):
            return piece
        text = "".join(self._spellings.get(char, char) for char in piece.text)
        return TextDelta(text) if isinstance(piece, TextDelta) else ReasoningDelta(text)


_MARKUP_WORDS = frozenset(
    {"tool_call", "function", "param", "parameter", "arg_key", "arg_value", "TOOL_CALLS", "ARGS", "CALL_ID"}
)
"""What is between the brackets of the special tokens that the text dialects build their markers from."""


def _skip_channel_name(source: Source, end: str) -> Steps[None]:
    """Read the word that names a channel; the newline after it stays, as mlx-lm's server has it."""
    while True:
        for position, char in enumerate(source.text):
            if char == "\n" or char == end:
                source.take(position)
                return
        if source.is_closed:
            source.take(len(source.text))
            return
        yield None
