"""Text of one row: split characters, stop strings across tokens, and events that leave exactly once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from phyla.engine.answer import Answer
from phyla.engine.stops import StopMatcher
from phyla.request import Rendered, Request, Token
from phyla.testing.scripted import CharacterTokenizer

PLAIN = CharacterTokenizer()


def said(
    tokenizer: CharacterTokenizer, ids: Sequence[int], stop: Sequence[str] = ()
) -> tuple[list[Token], str, str | None]:
    """Events, the text at the end, and the stop string that fired."""
    answer = Answer(Request("a", Rendered((1,)), stop=tuple(stop)), 0, tokenizer)
    events: list[Token] = []
    for token_id in ids:
        events += answer.add(token_id)
        if answer.stop_string is not None:
            return events, "", answer.stop_string
    ending = answer.finish()
    return [*events, *ending.events], ending.text, answer.stop_string


def text_of(tokenizer: CharacterTokenizer, ids: Sequence[int], stop: Sequence[str] = ()) -> str:
    events, tail, _ = said(tokenizer, ids, stop)
    return "".join(event.text for event in events) + tail


def expected(text: str, stops: Sequence[str]) -> str:
    """What a reader of the whole text would cut."""
    return text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))]


def test_a_character_comes_when_its_last_byte_does() -> None:
    events, tail, _ = said(PLAIN, list("é😀".encode()))
    assert [event.text for event in events] == ["", "é", "", "", "", "😀"]
    assert tail == ""


def test_a_character_that_is_never_completed_comes_at_the_end() -> None:
    events, tail, _ = said(PLAIN, list("a😀".encode())[:-1])
    assert "".join(event.text for event in events) == "a"
    assert tail == "\ufffd"


@pytest.mark.parametrize(("is_cut", "tail"), [(True, ""), (False, "\ufffd")])
def test_a_character_that_the_cap_fell_into_is_left_out(is_cut: bool, tail: str) -> None:
    answer = Answer(Request("a", Rendered((1,))), 0, PLAIN)
    for token_id in "😀".encode()[:-1]:
        answer.add(token_id)
    assert answer.finish(is_cut).text == tail


def test_a_stop_string_over_two_tokens_is_never_sent() -> None:
    tokenizer = CharacterTokenizer(["ND more"])
    ids = [*tokenizer.encode("the E"), tokenizer.encode("ND more")[0]]
    events, _, stop = said(tokenizer, ids, ["END"])
    assert "".join(event.text for event in events) == "the "
    assert stop == "END"
    assert len(events) == len(ids)


def test_the_start_of_a_stop_string_at_the_end_is_delivered_once() -> None:
    assert text_of(PLAIN, PLAIN.encode("the EN"), ["END"]) == "the EN"


def test_what_was_held_back_goes_on_when_it_was_no_stop_string() -> None:
    assert text_of(PLAIN, PLAIN.encode("ENE END"), ["END"]) == "ENE "


def test_nothing_that_may_be_a_stop_string_is_sent_early() -> None:
    answer = Answer(Request("a", Rendered((1,)), stop=("END",)), 0, PLAIN)
    assert [[event.text for event in answer.add(one)] for one in PLAIN.encode("xENy")] == [
        ["x"],
        [],
        [],
        ["E", "N", "y"],
    ]


@pytest.mark.parametrize(
    ("text", "stops"), [("abcd", ["abcd", "bc"]), ("abcx", ["abcd", "bc"]), ("abab", ["ba", "ab"])]
)
def test_the_earliest_of_several_wins(text: str, stops: list[str]) -> None:
    assert text_of(PLAIN, PLAIN.encode(text), stops) == expected(text, stops)


def test_control_tokens_carry_their_spelling_and_take_part_in_matching() -> None:
    tokenizer = CharacterTokenizer(special=["<|call|>"])
    events, _, _ = said(tokenizer, tokenizer.encode("a<|call|>b"))
    assert [(event.text, event.special) for event in events] == [("a", False), ("<|call|>", True), ("b", False)]
    assert text_of(tokenizer, tokenizer.encode("a<|call|>b"), ["<|call|>"]) == "a"


@given(
    text=st.text(alphabet="abc", max_size=20),
    stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3),
    data=st.data(),
)
def test_however_the_text_is_cut_the_same_comes_out(text: str, stops: list[str], data: st.DataObject) -> None:
    matcher = StopMatcher(stops)
    rest, match = text, None
    while rest and match is None:
        size = data.draw(st.integers(1, len(rest)))
        before = matcher.num_certain
        match = matcher.add(rest[:size])
        assert matcher.num_certain >= before
        rest = rest[size:]
    match = match or matcher.finish()
    end = match.position if match else matcher.num_certain
    assert text[:end] == expected(text, stops)


@given(text=st.text(max_size=12), stops=st.lists(st.text(min_size=1, max_size=3), max_size=2))
def test_every_token_leaves_in_exactly_one_event(text: str, stops: list[str]) -> None:
    ids = list(text.encode())
    events, _, stop = said(PLAIN, ids, stops)
    assert [event.token_id for event in events] == ids[: len(events)]
    assert stop is not None or len(events) == len(ids)
