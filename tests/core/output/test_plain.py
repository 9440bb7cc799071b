"""The parser of models without a dialect, and the choice among dialects."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from phyla.errors import UnknownName, UsageError
from phyla.output import PLAIN, OutputParserFactory, ParserContext, PlainParser, ReasoningDelta, choose_parser

THINK = ParserContext(reasoning_start="<think>", reasoning_end="</think>")
INSIDE = ParserContext(reasoning_start="<think>", reasoning_end="</think>", starts_in_reasoning=True)


def read(context, *pieces):
    """(reasoning, text) of an answer fed in pieces."""
    parser = PlainParser(context)
    said = [piece for text in pieces for piece in parser.feed(text)] + parser.finish()
    reasoning = "".join(piece.text for piece in said if isinstance(piece, ReasoningDelta))
    return reasoning, "".join(piece.text for piece in said if not isinstance(piece, ReasoningDelta))


@pytest.mark.parametrize(
    ("context", "answer", "reasoning", "text"),
    [
        (THINK, "<think>why</think>so", "why", "so"),
        (THINK, "\n<think>why</think>\nso", "why", "\n\nso"),
        (THINK, "so", "", "so"),
        (THINK, "The <think> tag opens </think>.", "", "The <think> tag opens </think>."),
        (THINK, "<think>a</think>b<think>c</think>", "a", "b<think>c</think>"),
        (THINK, "<think>never ends </thin", "never ends </thin", ""),
        (INSIDE, "why</think>so", "why", "so"),
        (INSIDE, "why", "why", ""),
        (ParserContext(), "<think>why</think>so", "", "<think>why</think>so"),
    ],
)
def test_reasoning_is_what_stands_between_the_markers_at_the_beginning(context, answer, reasoning, text):
    assert read(context, answer) == (reasoning, text)


@given(
    answer=st.lists(st.sampled_from(["<think>", "</think>", "<th", "ink>", "</", "a", " ", "\n"]), max_size=8),
    cuts=st.lists(st.integers(0, 60), max_size=6),
    context=st.sampled_from([THINK, INSIDE, ParserContext()]),
)
def test_however_an_answer_is_cut_it_reads_the_same(answer, cuts, context):
    whole = "".join(answer)
    edges = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    pieces = [whole[start:end] for start, end in itertools.pairwise(edges)]

    assert read(context, *pieces) == read(context, whole)


def test_special_tokens_other_than_the_markers_are_dropped():
    parser = PlainParser(THINK)

    assert parser.feed("<|im_end|>", special=True) == []
    assert parser.feed("<think>", special=True) == []
    assert parser.feed("why") == [ReasoningDelta("why")]


def dialect(name, sign, rank=0):
    return OutputParserFactory(name, PlainParser, matches_template=lambda template: sign in template, rank=rank)


def test_a_name_goes_before_the_familys_and_that_before_the_template():
    known = [dialect("a", "A"), dialect("b", "B"), dialect("c", "C")]

    assert choose_parser(known, asked="a", family_default="b", template="C").name == "a"
    assert choose_parser(known, family_default="b", template="C").name == "b"
    assert choose_parser(known, template="C").name == "c"
    assert choose_parser(known, template="D") is PLAIN
    assert choose_parser(known) is PLAIN


def test_the_highest_rank_wins_and_a_tie_is_an_error():
    assert choose_parser([dialect("a", "A", 1), dialect("b", "A", 2)], template="A").name == "b"
    with pytest.raises(UsageError, match="'a' and 'b' both claim"):
        choose_parser([dialect("a", "A"), dialect("b", "A")], template="A")


def test_an_unknown_name_lists_what_there_is():
    with pytest.raises(UnknownName, match="Did you mean 'hermes'"):
        choose_parser([dialect("hermes", "x")], asked="herms")
