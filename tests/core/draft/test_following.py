"""Walks through a constraint find what would fail, or hold everybody up, on the engine's thread."""

from __future__ import annotations

import numpy as np
import pytest
from phyla.draft import following
from phyla.draft.following import check_following
from phyla.errors import ConstraintError

EOS = 70


class Scripted:
    """Allows the same ids at every step, and notes what it is given."""

    def __init__(self, *allowed, fails_at=None):
        self.words = np.zeros(3, dtype=np.uint32)
        for token_id in allowed:
            self.words[token_id // 32] |= np.uint32(1 << (token_id % 32))
        self.accepted = []
        self._fails_at = fails_at

    def mask(self):
        return self.words.view(np.int32)

    def accept(self, token_id):
        self.accepted.append(token_id)
        if len(self.accepted) == self._fails_at:
            raise ConstraintError("at its limits")
        return True


def test_a_walk_takes_tokens_that_are_allowed_and_end_nothing(monkeypatch):
    monkeypatch.setattr(following, "MOST_TRIED_SECONDS", 60)
    matcher = Scripted(0, 31, 40, EOS)
    check_following(lambda: matcher, frozenset({EOS, 500}))
    assert len(matcher.accepted) == following.NUM_WALKS * following.NUM_STEPS
    assert set(matcher.accepted) == {0, 31, 40}


def test_a_walk_ends_where_only_an_end_may_follow():
    matcher = Scripted(EOS)
    check_following(lambda: matcher, frozenset({EOS}))
    assert matcher.accepted == []


def test_what_allows_nothing_from_the_start_is_refused():
    with pytest.raises(ConstraintError, match="nothing satisfies it"):
        check_following(Scripted, frozenset({EOS}))


def test_limits_that_a_walk_meets_are_an_error():
    with pytest.raises(ConstraintError, match="at its limits"):
        check_following(lambda: Scripted(1, 2, fails_at=3), frozenset({EOS}))


def test_a_step_that_takes_too_long_is_an_error(monkeypatch):
    monkeypatch.setattr(following, "MOST_TRIED_SECONDS", -1)
    with pytest.raises(ConstraintError, match="takes too long"):
        check_following(lambda: Scripted(1, 2), frozenset({EOS}))
