"""Reading a model's output: reasoning, tool calls and plain text out of a stream of tokens.

The contract, the plain parser and the choice among parsers; the dialects live in plugins.
"""

from phyla.output.call_syntax import CalledTool, CallSyntax
from phyla.output.choose import choose_parser
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
from phyla.output.plain import PLAIN, PlainParser

__all__ = [
    "PLAIN",
    "CallSyntax",
    "CalledTool",
    "OutputParser",
    "OutputParserFactory",
    "ParserContext",
    "Piece",
    "PlainParser",
    "ReasoningDelta",
    "TextDelta",
    "ToolArgumentsDelta",
    "ToolCallEnd",
    "ToolCallStart",
    "choose_parser",
]
