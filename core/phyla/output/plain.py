"""The parser of models without a dialect: text is text, and a reasoning span is split off if the model has one."""

from __future__ import annotations

from phyla.output.parser import OutputParserFactory, ParserContext, Piece, ReasoningDelta, TextDelta


class PlainParser:
    """Splits `reasoning_start ... reasoning_end` from the rest; knows no tool calls.

    Special tokens other than the markers are dropped. A marker may also come as ordinary text cut anywhere: the longest
    tail that could still become one is held back. Reasoning only opens where the answer begins: further on, a marker is
    something that the model writes about.
    """

    def __init__(self, context: ParserContext) -> None:
        self._start = context.reasoning_start
        self._end = context.reasoning_end
        self._in_reasoning = context.starts_in_reasoning and self._end is not None
        self._can_open = not self._in_reasoning
        self._held = ""

    def feed(self, text: str, special: bool = False) -> list[Piece]:
        if special and text not in (self._start, self._end):
            return []
        self._held += text
        return self._drain()

    def finish(self, is_cut: bool = False) -> list[Piece]:
        held, self._held = self._held, ""
        is_half_a_marker = is_cut and len(held) > 1
        return self._said(held[: len(held) - num_held_back(held, self._marker())] if is_half_a_marker else held)

    def _drain(self) -> list[Piece]:
        pieces: list[Piece] = []
        while (marker := self._marker()) is not None:
            before, found, after = self._held.partition(marker)
            if not found or (not self._in_reasoning and before.strip()):
                break
            pieces += self._said(before)
            self._in_reasoning, self._can_open = not self._in_reasoning, False
            self._held = after
        keep = num_held_back(self._held, marker)
        certain = self._held[: len(self._held) - keep]
        self._held = self._held[len(certain) :]
        return pieces + self._said(certain)

    def _marker(self) -> str | None:
        """What would change the state next, if anything still can."""
        if self._in_reasoning:
            return self._end
        return self._start if self._can_open and self._end is not None else None

    def _said(self, text: str) -> list[Piece]:
        if not text:
            return []
        self._can_open = self._can_open and not text.strip()
        return [ReasoningDelta(text) if self._in_reasoning else TextDelta(text)]


def num_held_back(text: str, marker: str | None) -> int:
    """Characters at the end of `text` that may be the beginning of `marker`."""
    if marker is None:
        return 0
    longest = min(len(text), len(marker) - 1)
    return next((size for size in range(longest, 0, -1) if marker.startswith(text[-size:])), 0)


PLAIN = OutputParserFactory(
    name="plain",
    create=PlainParser,
    rank=-1,
    reads_calls=False,
    description="Text as it is; reasoning split off by its markers.",
)
