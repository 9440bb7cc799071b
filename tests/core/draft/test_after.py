"""A constraint that waits for the end of the reasoning."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from phyla.draft import Span
from phyla.draft.after import after
from phyla.draft.verify import RowRound, plan, settle
from phyla.request import SamplingParams
from phyla.sampling.sampler import RowSampler
from phyla.sampling.token_mask import allows
from phyla.testing.constraint import WordList

VOCAB = 50
EOS = 1
WORDS = WordList([[10, 11], [20]], eos_ids=[EOS], vocab_size=VOCAB)


def waiting(marker=(40, 41)):
    return after(marker, WORDS.open(), eos_ids=[EOS], vocab_size=VOCAB)


def allowed(constraint):
    mask = constraint.mask()
    return {token_id for token_id in range(VOCAB) if allows(mask, token_id)}


def accept(constraint, *tokens):
    for token_id in tokens:
        constraint.accept(token_id)
    return constraint


def test_everything_but_end_of_sequence_is_allowed_while_it_waits():
    assert allowed(waiting()) == set(range(VOCAB)) - {EOS}
    assert not waiting().is_satisfied
    assert waiting().forced() == ()


def test_the_whole_marker_wakes_it():
    assert allowed(accept(waiting(), 5, 40)) == set(range(VOCAB)) - {EOS}
    assert allowed(accept(waiting(), 5, 40, 41)) == {10, 20}
    assert allowed(accept(waiting(), 40, 40, 41)) == {10, 20}


def test_an_empty_marker_is_the_constraint_itself():
    assert allowed(waiting(())) == {10, 20}


def test_it_is_satisfied_when_what_it_waited_for_is():
    assert accept(waiting(), 40, 41, 20).is_satisfied


def test_a_marker_inside_the_answer_means_nothing():
    words = WordList([[40, 41, 9]], eos_ids=[EOS], vocab_size=VOCAB)
    constraint = after((40, 41), words.open(), eos_ids=[EOS], vocab_size=VOCAB)

    assert allowed(accept(constraint, 40, 41, 40, 41)) == {9}


@given(before=st.lists(st.sampled_from([5, 40]), max_size=5), data=st.data())
def test_accept_then_rollback_changes_nothing(before, data):
    said = [*before, 40, 41, *data.draw(st.sampled_from([[], [10], [10, 11], [20]]))]
    num_kept = data.draw(st.integers(0, len(said)))
    constraint = accept(waiting(), *said)

    constraint.rollback(len(said) - num_kept)

    assert allowed(constraint) == allowed(accept(waiting(), *said[:num_kept]))


@pytest.mark.parametrize(
    ("drafts", "kept"),
    [
        ((5, 40, 41, 10, 11), (5, 40, 41, 10, 11)),
        ((5, 40, 41, 20), (5, 40, 41, 20)),
        ((5, 40, 41, 30, 31), (5, 40, 41)),
        ((5, 40, 5, 41, 30), (5, 40, 5, 41, 30)),
    ],
)
def test_a_marker_inside_a_window_wakes_it_there_and_is_rolled_back_with_it(drafts, kept):
    constraint = waiting()
    row = RowRound(RowSampler(SamplingParams(), VOCAB), [3], 0, 20, frozenset([EOS]), constraint)

    planned = plan(row, Span(drafts))
    before = allowed(constraint)
    verdict = settle(planned, [5, 40, 7, 0, 0, 0][: len(planned.draws)])

    assert planned.drafts == kept
    assert before == set(range(VOCAB)) - {EOS}
    assert verdict.tokens == (5, 40, 7)
    assert allowed(constraint) == set(range(VOCAB)) - {EOS}
