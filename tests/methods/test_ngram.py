"""What n-gram lookup proposes, against the rule written out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from phyla.draft import Observed
from phyla.settings import Settings
from phyla.testing.method import MethodContract
from phyla_ngram import NgramSettings, phyla_methods
from phyla_ngram.index import SuffixIndex
from phyla_ngram.provider import NgramSource
from pydantic import ValidationError


def by_the_rule(history, shortest, longest, most):
    """Longest suffix first, first earlier occurrence, cut at the end of the history."""
    for size in range(min(longest, len(history) - 1), shortest - 1, -1):
        for start in range(len(history) - size):
            if history[start : start + size] == history[-size:]:
                return history[start + size : start + size + most]
    return []


def proposed(history, shortest=1, longest=3, most=10, num_indexed=10_000):
    span = NgramSource(SuffixIndex(shortest, longest, num_indexed)).propose(history, most)
    return [] if span is None else list(span.tokens)


@pytest.mark.parametrize(
    ("history", "drafts"),
    [
        ([1, 2, 3, 1, 2], [3, 1, 2]),
        ([7, 7, 7, 7], [7]),
        ([5], []),
        ([1, 9, 1], [9, 1]),
        ([1, 2, 3, 4], []),
        ([0, 0], [0]),
    ],
)
def test_worked_traces(history, drafts):
    assert proposed(history) == drafts


@given(
    history=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    shortest=st.integers(1, 3),
    wider=st.integers(0, 3),
    most=st.integers(1, 12),
)
def test_the_index_is_the_rule(history, shortest, wider, most):
    assert proposed(history, shortest, shortest + wider, most) == by_the_rule(history, shortest, shortest + wider, most)


@given(pieces=st.lists(st.lists(st.integers(0, 2), max_size=5), min_size=1, max_size=8))
def test_growing_step_by_step_is_the_same_as_at_once(pieces):
    source = NgramSource(SuffixIndex(1, 3, 10_000))
    history = [0]

    for piece in pieces:
        history.extend(piece)
        span = source.propose(history, 10)
        source.observe(Observed(tuple(piece)))
        assert ([] if span is None else list(span.tokens)) == by_the_rule(history, 1, 3, 10)


def test_large_ids_of_neighbouring_runs_dont_collide():
    assert proposed([2**31 - 1, 0, 5, 0, 2**31 - 1, 6, 2**31 - 1, 0]) == [5, 0, 2**31 - 1, 6, 2**31 - 1, 0]


def test_past_the_bound_only_the_beginning_is_proposed():
    history = [1, 2, 3, 4, 9, 8, 7, 9, 8]

    assert proposed(history, num_indexed=4) == []
    assert proposed([*history, 1, 2], num_indexed=4) == [3, 4, 9, 8, 7, 9, 8, 1, 2]
    assert proposed(history) == [7, 9, 8]


def test_a_minimum_above_the_maximum_is_refused():
    with pytest.raises(ValidationError, match="--ngram-min 4 is above --ngram-max 3"):
        NgramSettings(shortest_match=4)


class TestNgram(MethodContract):
    @pytest.fixture
    def method(self):
        return phyla_methods(Settings([]))[0]
