"""Reading a model's output: reasoning, tool calls and plain text out of a stream of tokens.

The contract only; the parsers live in plugins.
"""

from phyla.output.parser import (
    OutputParser,
    OutputParserFactory,
    ParserContext,
    Piece,
    ReasoningDelta,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
)

__all__ = [
    "OutputParser",
    "OutputParserFactory",
    "ParserContext",
    "Piece",
    "ReasoningDelta",
    "TextDelta",
    "ToolArgumentsDelta",
    "ToolCallEnd",
    "ToolCallStart",
]
