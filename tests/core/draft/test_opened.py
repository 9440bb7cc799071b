"""A model that opens its own reasoning is free until it closes it; one that doesn't is bound from its first token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from phyla.draft.after import after
from phyla.draft.opened import unless_opened
from phyla.errors import ConstraintError
from phyla.sampling.token_mask import allows
from phyla.testing.constraint import WordList

VOCAB = 50
EOS = 1
OPEN, CLOSE = (30, 31), (40,)
WORDS = [[10, 11], [20], [30, 12], [30, 31, 13]]
"""Two begin as the marker does, and one as the whole of it."""


def constraint_of(words=WORDS, marker=OPEN):
    inner = WordList(words, eos_ids=[EOS], vocab_size=VOCAB).open()
    waiting = after(CLOSE, inner, eos_ids=[EOS], vocab_size=VOCAB)
    return unless_opened(marker, waiting, inner, vocab_size=VOCAB)


def allowed(constraint):
    mask = constraint.mask()
    return {token_id for token_id in range(VOCAB) if allows(mask, token_id)}


def told(*tokens, **options):
    constraint = constraint_of(**options)
    for token_id in tokens:
        constraint.accept(token_id)
    return constraint


ANYTHING = set(range(VOCAB)) - {EOS}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ((), {10, 20, 30}),
        ((10,), {11}),
        ((10, 11), {EOS}),
        ((30,), {12, 31}),
        ((30, 12), {EOS}),
        ((30, 31), ANYTHING),
        ((30, 31, 13), ANYTHING),
        ((30, 31, 5, 40), {10, 20, 30}),
        ((30, 31, 40, 10), {11}),
        ((30, 31, 40, 30, 31), {13}),
    ],
)
def test_what_may_come_next(said, expected):
    assert allowed(told(*said)) == expected


def test_an_answer_that_cant_begin_as_the_marker_does_is_free_to_open_it():
    words = [[10, 11]]
    assert allowed(told(words=words)) == {10, 30}
    assert allowed(told(30, words=words)) == {31}
    assert told(30, words=words).forced() == (31,)
    with pytest.raises(ConstraintError):
        told(30, 10, words=words)


def test_it_is_satisfied_by_the_answer_alone():
    assert told(10, 11).is_satisfied
    assert told(30, 12).is_satisfied
    assert told(30, 31, 7, 40, 20).is_satisfied
    assert not told(30, 31, 20).is_satisfied
    assert not told(30).is_satisfied


def test_without_a_marker_it_is_the_constraint_itself():
    assert allowed(told(marker=())) == {10, 20, 30}


@given(
    said=st.sampled_from(
        [(10, 11), (20,), (30, 12), (30, 31, 5, 13, 40, 10, 11), (30, 31, 40, 30, 31, 13), (30, 31, 30, 31, 40)]
    ),
    data=st.data(),
)
def test_accept_then_rollback_changes_nothing(said, data):
    num_said = data.draw(st.integers(0, len(said)))
    constraint = told(*said[:num_said])
    num_kept = data.draw(st.integers(0, num_said))

    constraint.rollback(num_said - num_kept)

    assert allowed(constraint) == allowed(told(*said[:num_kept]))
    for token_id in said[num_kept:]:
        constraint.accept(token_id)
    assert allowed(constraint) == allowed(told(*said))
    assert constraint.is_satisfied == told(*said).is_satisfied
