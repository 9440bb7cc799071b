"""Cutting a parser's input every way: whatever the pieces, the answer must be the same."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from phyla.output import (
    OutputParserFactory,
    ParserContext,
    Piece,
    ReasoningDelta,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
)

Fed = tuple[str, bool]
"""One piece as the engine gives it: (text, is the spelling of a special token)."""


@dataclass(frozen=True)
class ParsedCall:
    """One call of an answer."""

    name: str
    arguments: str
    is_complete: bool


@dataclass(frozen=True)
class ParsedAnswer:
    """What is left of a stream of pieces when it is put together."""

    content: str
    reasoning: str
    calls: tuple[ParsedCall, ...]


def parse(
    factory: OutputParserFactory, context: ParserContext, fed: Sequence[Fed], *, is_cut: bool = False
) -> ParsedAnswer:
    """Run one answer, which its cap may have cut short, through a fresh parser."""
    parser = factory.create(context)
    pieces = [piece for text, special in fed for piece in parser.feed(text, special)]
    return assembled([*pieces, *parser.finish(is_cut)])


def assembled(pieces: Sequence[Piece]) -> ParsedAnswer:
    """Put a stream of pieces together.

    Raises:
        AssertionError: call indices skip or repeat, or arguments come outside their call.
    """
    content, reasoning = "", ""
    calls: list[ParsedCall] = []
    for piece in pieces:
        match piece:
            case TextDelta(text):
                content += text
            case ReasoningDelta(text):
                reasoning += text
            case ToolCallStart(index, name):
                assert index == len(calls), f"call {index} starts after {len(calls)} calls"
                calls.append(ParsedCall(name, "", False))
            case ToolArgumentsDelta(index, json_text):
                assert index == len(calls) - 1, f"arguments for call {index} inside call {len(calls) - 1}"
                calls[-1] = ParsedCall(calls[-1].name, calls[-1].arguments + json_text, False)
            case ToolCallEnd(index):
                assert index == len(calls) - 1, f"call {index} ends inside call {len(calls) - 1}"
                calls[-1] = ParsedCall(calls[-1].name, calls[-1].arguments, True)
    return ParsedAnswer(content, reasoning, tuple(calls))


def every_cut(fed: Sequence[Fed]) -> Iterator[list[Fed]]:
    """The input cut in two at every place, and once into single characters. Special tokens stay whole."""
    for index, (text, special) in enumerate(fed):
        if special:
            continue
        for position in range(1, len(text)):
            yield [*fed[:index], (text[:position], False), (text[position:], False), *fed[index + 1 :]]
    yield [(char, False) if not special else (text, True) for text, special in fed for char in _units(text, special)]


def random_cuts(fed: Sequence[Fed], num_ways: int, seed: int) -> Iterator[list[Fed]]:
    """The input cut into random pieces, `num_ways` times, the same ways for the same seed."""
    generator = random.Random(seed)
    for _ in range(num_ways):
        yield [piece for text, special in fed for piece in _cut(text, special, generator)]


def _units(text: str, special: bool) -> Sequence[str]:
    return [text] if special else text


def _cut(text: str, special: bool, generator: random.Random) -> Iterator[Fed]:
    if special:
        yield text, True
        return
    position = 0
    while position < len(text):
        length = generator.randint(1, 9)
        yield text[position : position + length], False
        position += length
