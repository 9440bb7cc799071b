"""How many drafts pay, from numbers a test gives."""

import pytest
from phyla.draft.length import DraftLength, StepCosts


def costs_of(**seconds):
    costs = StepCosts()
    for width, value in seconds.items():
        costs.record(1, int(width.removeprefix("w")), value)
    return costs


def test_without_costs_it_always_drafts_the_most():
    length = DraftLength(7)
    length.record(7, 0)

    assert length.wanted() == 7


def test_good_drafts_and_cheap_checks_draft_the_most():
    length = DraftLength(5, costs_of(w1=1.0, w6=1.1))
    for _ in range(20):
        length.record(5, 5)

    assert length.wanted() == 5


def test_bad_drafts_stop_and_are_tried_again_later():
    length = DraftLength(5, costs_of(w1=1.0, w2=1.4, w6=2.0))
    for _ in range(20):
        length.record(5, 0)

    assert length.wanted() == 0
    num_idle = 0
    while length.wanted() == 0:
        length.record(0, 0)
        num_idle += 1
    assert 5 < num_idle < 300


def test_expensive_checks_shorten_drafts():
    cheap, dear = costs_of(w1=1.0, w9=1.2), costs_of(w1=1.0, w2=1.2, w9=4.0)

    assert DraftLength(8, cheap).wanted() > DraftLength(8, dear).wanted()


def test_a_gain_within_the_margin_isnt_worth_it():
    assert DraftLength(1, costs_of(w1=1.0, w2=1.58)).wanted() == 0
    assert DraftLength(1, costs_of(w1=1.0, w2=1.5)).wanted() == 1


def test_drafts_after_the_first_rejected_one_say_nothing():
    one, other = DraftLength(9), DraftLength(9)
    one.record(9, 2)
    other.record(3, 2)

    assert one.acceptance == other.acceptance


def test_costs_between_measured_widths_are_interpolated():
    costs = costs_of(w1=1.0, w3=2.0)

    assert costs.relative(1, 2) == pytest.approx(1.5)
    assert costs.relative(1, 4) > 2.0
    assert costs.relative(8, 5) < 1.2, "nothing known for eight rows: assumed cheap, so that it is tried"


def test_company_that_makes_checks_dearer_shortens_drafts():
    costs = costs_of(w1=1.0, w9=1.2)
    for width, seconds in ((1, 1.0), (9, 5.0)):
        costs.record(4, width, seconds)
    length = DraftLength(8, costs)

    assert length.wanted(1) > length.wanted(4)


def test_plain_steps_are_asked_for_where_everything_was_drafted():
    costs = costs_of(w4=2.0)
    length = DraftLength(3, costs)
    assert length.wanted() == 3
    for _ in range(5):
        costs.record(1, 4, 2.0)
        length.record(3, 3)
    assert length.wanted() == 0
    assert length.wanted(2) == 3, "of two rows nothing is known yet"
    costs.record(1, 1, 0.4)
    assert length.wanted() == 0, "five times as long for four tokens"
    costs.record(1, 1, 8.0)
    assert length.wanted() == 3


def test_plain_steps_that_never_come_are_not_waited_for():
    costs = StepCosts()
    length = DraftLength(3, costs)
    for _ in range(30):
        costs.record(1, 4, 2.0)
    assert length.wanted() == 3
