"""One sample on its way to a client: engine events in, parsed pieces out, the same for every protocol."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

from phyla.output import (
    OutputParser,
    Piece,
    ReasoningDelta,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
)
from phyla.request import Finished, Token


@dataclass
class ToolCall:
    """A call as it has been parsed so far."""

    name: str
    id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:8]}")
    arguments: str = ""
    is_complete: bool = False

    def openai(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


class Answer:
    """Reads one sample through its parser and remembers what was said."""

    def __init__(self, parser: OutputParser, most_calls: int | None = None) -> None:
        """Begin.

        Args:
            parser: a fresh one.
            most_calls: the answer is over with the end of so many; what the model says after them is nobody's.
        """
        self._parser = parser
        self._most_calls = most_calls
        self.is_over = False
        """Whether nothing can be added to it."""

        self._text: list[str] = []
        self._reasoning: list[str] = []
        self.calls: list[ToolCall] = []
        self._num_tokens = 0
        self.num_reasoning_tokens = 0
        """Tokens up to the last one that reasoning came out of."""

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    def token(self, event: Token) -> list[Piece]:
        """What became certain with this token."""
        if self.is_over:
            return []
        self._num_tokens += 1
        return self._note(self._parser.feed(event.text, event.special)) if event.text else []

    def finish(self, event: Finished) -> list[Piece]:
        """What was still held back, by the engine and then by the parser: one flush through the same path."""
        if self.is_over:
            return []
        pieces = self._parser.feed(event.text) if event.text else []
        is_cut = event.reason == "length" or event.stop_string is not None
        noted = self._note([*pieces, *self._parser.finish(is_cut)])
        self.is_over = True
        return noted

    def finish_reason(self, event: Finished) -> str:
        """Whole calls come before everything, unless the cap cut another short: its arguments are no JSON then."""
        whole = [call.is_complete for call in self.calls]
        if any(whole) and (event.reason != "length" or all(whole)):
            return "tool_calls"
        return "length" if event.reason == "length" else "stop"

    def _note(self, pieces: list[Piece]) -> list[Piece]:
        noted: list[Piece] = []
        for piece in pieces:
            if isinstance(piece, TextDelta):
                self._text.append(piece.text)
            elif isinstance(piece, ReasoningDelta):
                self._reasoning.append(piece.text)
                self.num_reasoning_tokens = self._num_tokens
            elif isinstance(piece, ToolCallStart):
                self.calls.append(ToolCall(piece.name))
            elif isinstance(piece, ToolArgumentsDelta):
                self.calls[piece.index].arguments += piece.json_text
            elif isinstance(piece, ToolCallEnd):
                call = self.calls[piece.index]
                call.is_complete = True
                if not call.arguments:
                    # A call without arguments is an empty object, in chunks as in the whole.
                    call.arguments = "{}"
                    noted.append(ToolArgumentsDelta(piece.index, call.arguments))
            noted.append(piece)
            if isinstance(piece, ToolCallEnd) and len(self.calls) == self._most_calls:
                self.is_over = True
                break
        return noted
