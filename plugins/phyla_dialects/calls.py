"""The calls of one answer as they are told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from phyla.output import Piece, ToolArgumentsDelta, ToolCallEnd, ToolCallStart

from phyla_dialects.tools import OfferedTools


@dataclass
class Calls:
    """The calls of one answer: which tools exist, and the index of the next call."""

    tools: OfferedTools
    are_told_whole: bool = False
    """Whether they wait until they are whole."""

    num_calls: int = 0
    sentinels: dict[str, str] = field(default_factory=dict)
    """Spelling of a special token to the character that stands for it."""

    def start(self, name: str) -> ToolCallStart:
        self.num_calls += 1
        return ToolCallStart(self.num_calls - 1, name)

    def arguments(self, json_text: str) -> ToolArgumentsDelta:
        return ToolArgumentsDelta(self.num_calls - 1, json_text)

    def end(self) -> ToolCallEnd:
        return ToolCallEnd(self.num_calls - 1)

    def whole(self, name: str, json_text: str) -> Iterator[Piece]:
        """One complete call in three pieces."""
        yield self.start(name)
        yield self.arguments(json_text)
        yield self.end()
