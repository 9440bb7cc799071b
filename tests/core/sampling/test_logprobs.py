"""Reported log-probabilities: which, in what order, from which distribution."""

import math

import mlx.core as mx
import numpy as np
import pytest
from phyla.sampling.logprobs import capture


def row(values):
    return mx.log(mx.array([values]))


def test_the_most_likely_come_first_and_ties_go_to_the_lower_id():
    got = capture(row([0.1, 0.3, 0.2, 0.3, 0.1]), mx.array([2]), [3])[0].read()

    assert [token_id for token_id, _ in got.top] == [1, 3, 2]
    assert got.logprob == pytest.approx(math.log(0.2))


def test_a_tie_across_the_edge_goes_to_the_lower_ids():
    logprobs = mx.full((1, 300), -math.log(300.0))

    got = capture(logprobs, mx.array([299]), [4])[0].read()

    assert [token_id for token_id, _ in got.top] == [0, 1, 2, 3]


def test_impossible_ids_arent_listed():
    got = capture(mx.array([[-math.inf, 0.0, -math.inf]]), mx.array([1]), [3])[0].read()

    assert got.top == ((1, 0.0),)


def test_zero_reports_the_chosen_token_alone_and_none_nothing():
    captures = capture(mx.concatenate([row([0.5, 0.5]), row([0.25, 0.75])]), mx.array([0, 1]), [0, None])

    assert captures[0].read().top == ()
    assert captures[1] is None


@pytest.mark.parametrize("num_top", [1, 5, 20, 64, 1000])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_top_equals_a_full_sort(num_top, dtype):
    logprobs = mx.array(np.random.default_rng(3).normal(0, 2, (1, 64)).astype(np.float32)).astype(dtype)
    values = logprobs[0].astype(mx.float32).tolist()

    got = capture(logprobs, mx.array([0]), [num_top])[0].read()

    want = sorted(range(64), key=lambda token_id: (-values[token_id], token_id))[:num_top]
    assert [token_id for token_id, _ in got.top] == want
    assert [value for _, value in got.top] == [values[token_id] for token_id in want]
