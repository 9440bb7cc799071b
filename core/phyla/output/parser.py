"""Incremental parsers: text pieces in, reasoning, content and tool calls out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from phyla.output.call_syntax import CallSyntax


@dataclass(frozen=True)
class TextDelta:
    """Content for the reader."""

    text: str


@dataclass(frozen=True)
class ReasoningDelta:
    """Text of the reasoning span, markers removed."""

    text: str


@dataclass(frozen=True)
class ToolCallStart:
    """A call to an offered tool begins. `index` counts the calls of this answer from 0."""

    index: int
    name: str


@dataclass(frozen=True)
class ToolArgumentsDelta:
    """More of the call's JSON arguments; concatenated they are one valid JSON object."""

    index: int
    json_text: str


@dataclass(frozen=True)
class ToolCallEnd:
    """The call is complete."""

    index: int


Piece = TextDelta | ReasoningDelta | ToolCallStart | ToolArgumentsDelta | ToolCallEnd


@dataclass(frozen=True)
class ParserContext:
    """What a parser knows before the first token."""

    tools: tuple[Mapping[str, Any], ...] = ()
    """Offered function tools; without any, markup of calls is plain text."""

    starts_in_reasoning: bool = False
    reasoning_start: str | None = None
    """Spelling that opens reasoning, or None for a model without."""

    reasoning_end: str | None = None
    tells_whole_calls: bool = False
    """Nobody reads along: a call may wait until it is whole, and one that breaks off is text, as if none had begun."""

    extras: Mapping[str, Any] = field(default_factory=dict)


class OutputParser(Protocol):
    """State of one answer.

    Whatever was fed comes out exactly once, as text if nothing better fits: nothing is dropped but markers and, of an
    answer that was cut short, the beginning of one; no marker leaks. However the input is cut into pieces, the
    concatenated output is the same.
    """

    def feed(self, text: str, special: bool = False) -> list[Piece]:
        """More output; `special` marks the spelling of a special token."""
        ...

    def finish(self, is_cut: bool = False) -> list[Piece]:
        """The end: flush what was held back, as a call if it is complete enough, else as text.

        Args:
            is_cut: the answer didn't end, it was ended. What is held back and could still have become markup is dropped
                then: half a marker is no text. One character alone is: more answers end in `<` than in a cut marker.
        """
        ...


@dataclass(frozen=True)
class OutputParserFactory:
    """One dialect, as `phyla_output_parsers` gives it."""

    name: str
    create: Callable[[ParserContext], OutputParser]
    matches_template: Callable[[str], bool] = lambda template: False
    """Whether a chat template's source shows this dialect."""

    rank: int = 0
    """Among dialects that match a template the highest wins."""

    reasoning: tuple[tuple[str, str], ...] = (("<think>", "</think>"),)
    """Pairs of reasoning markers it understands."""

    reads_calls: bool = True
    """Whether it knows tool calls; without, they stay text."""

    call_syntax: Callable[[str | None], CallSyntax] | None = None
    """`(chat template)`: how it writes calls, so that one can be required; None where that isn't known."""

    description: str = ""
