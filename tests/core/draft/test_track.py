"""Lookups prove themselves on plain steps before anything is checked for them."""

from phyla.draft.length import DraftLength, StepCosts
from phyla.draft.span import Span
from phyla.draft.track import Track


class Counting:
    """Believes that ids count up; knows nothing past `last`."""

    def __init__(self, last=100):
        self.last = last

    def propose(self, history, room):
        return Span((history[-1] + 1,)) if history[-1] < self.last else None

    def observe(self, step):
        pass


def track(**more):
    length = DraftLength(10, StepCosts())
    return Track(Counting(**more), length), length


def test_a_row_is_on_track_once_a_silent_guess_was_right():
    tried, _ = track()
    tried.stepped([5])
    assert not tried.is_on_track
    tried.stepped([5, 6])
    assert tried.is_on_track


def test_a_wrong_guess_and_no_guess_are_off_the_track():
    tried, _ = track(last=6)
    tried.stepped([5])
    tried.stepped([5, 9])
    assert not tried.is_on_track
    tried.stepped([5, 9, 10])
    assert not tried.is_on_track


def test_a_row_is_off_the_track_where_nothing_is_known_to_follow():
    tried, _ = track(last=6)
    tried.stepped([4])
    tried.stepped([4, 5])
    assert tried.is_on_track
    tried.stepped([4, 5, 6])
    assert not tried.is_on_track


def test_guesses_are_evidence_of_what_drafts_would_fetch():
    right, of_right = track()
    wrong, of_wrong = track()
    before = of_right.acceptance
    for number in range(1, 9):
        right.stepped(range(number))
        wrong.stepped([7 * one for one in range(number)])
    assert of_wrong.acceptance < before < of_right.acceptance


def test_a_round_decides_by_its_drafts():
    tried, _ = track()
    tried.verified([5, 6, 7], 2)
    assert tried.is_on_track
    tried.stepped([5, 6, 7, 8])
    assert tried.is_on_track
    tried.verified([5, 6, 7, 8, 3], 0)
    assert not tried.is_on_track
