"""Filters equal mlx-lm's bit for bit, also on ties, infinities and the edges of their ranges."""

import math

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm import sample_utils as oracle
from phyla.request import SamplingParams
from phyla.sampling import filters

VOCAB = 257
DTYPES = [mx.float32, mx.float16, mx.bfloat16]
KINDS = ["spread", "flat", "tied", "banned", "certain"]


def logprobs_of(kind: str, dtype: mx.Dtype, num_rows: int = 40) -> mx.array:
    draw = np.random.default_rng(KINDS.index(kind))
    logits = draw.normal(0, 4, (num_rows, VOCAB))
    if kind == "flat":
        logits /= 50
    if kind == "tied":
        logits = np.round(logits / 2) * 2
    if kind == "banned":
        logits[draw.random((num_rows, VOCAB)) < 0.7] = -math.inf
        logits[:, 3] = 1.0
    if kind == "certain":
        logits[:, 17] = 300.0
    array = mx.array(logits.astype(np.float32)).astype(dtype)
    return array - mx.logsumexp(array, axis=-1, keepdims=True)


def assert_same(got: mx.array, want: mx.array) -> None:
    assert got.dtype == want.dtype
    assert mx.array_equal(got, want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mass", [1e-6, 0.1, 0.5, 0.9, 0.999999])
def test_top_p_equals_the_oracle(kind, dtype, mass):
    logprobs = logprobs_of(kind, dtype)

    assert_same(filters.top_p(logprobs, mass), oracle.apply_top_p(logprobs, mass))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [1e-4, 0.05, 0.5, 1.0])
def test_min_p_equals_the_oracle(kind, dtype, share):
    logprobs = logprobs_of(kind, dtype)

    assert_same(filters.min_p(logprobs, share), oracle.apply_min_p(logprobs, share))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_kept", [1, 2, 40, VOCAB - 1])
def test_top_k_equals_the_oracle(kind, dtype, num_kept):
    logprobs = logprobs_of(kind, dtype)

    assert_same(filters.top_k(logprobs, num_kept), oracle.apply_top_k(logprobs, num_kept))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threshold", [0.0, 0.01, 0.1, 0.5])
@pytest.mark.parametrize("special_ids", [(), (17, 250)])
def test_xtc_that_happens_equals_the_oracle(kind, dtype, threshold, special_ids):
    logprobs = logprobs_of(kind, dtype)

    got = filters.xtc(logprobs, mx.zeros((logprobs.shape[0], 1)), 1.0, threshold, special_ids)

    assert_same(got, oracle.apply_xtc(logprobs, 1.0, threshold, list(special_ids)))


def test_xtc_leaves_a_row_alone_when_its_number_is_above_the_probability():
    logprobs = logprobs_of("spread", mx.float32, num_rows=2)

    got = filters.xtc(logprobs, mx.array([[0.51], [0.5]]), 0.5, 0.01, ())

    assert mx.array_equal(got[0], logprobs[0])
    assert not mx.array_equal(got[1], logprobs[1])


def test_xtc_never_removes_special_ids():
    logprobs = mx.log(mx.array([[0.4, 0.3, 0.2, 0.1]]))

    got = filters.xtc(logprobs, mx.zeros((1, 1)), 1.0, 0.15, (0,))

    assert (got > -math.inf).tolist() == [[True, False, True, True]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_chain_equals_the_oracle_in_its_order(kind, dtype):
    logprobs = logprobs_of(kind, dtype)
    chain = filters.Filters(temperature=0.6, top_p=0.95, min_p=0.01, xtc_probability=1.0, xtc_threshold=0.05, top_k=30)

    want = oracle.apply_top_p(logprobs, 0.95)
    want = oracle.apply_min_p(want, 0.01)
    want = oracle.apply_xtc(want, 1.0, 0.05, [])
    want = oracle.apply_top_k(want, 30) * (1 / 0.6)

    assert_same(chain.apply(logprobs, mx.zeros((logprobs.shape[0], 1))), want)


def test_order_matters_so_the_chain_isnt_top_k_first():
    logprobs = mx.log(mx.array([[0.4, 0.3, 0.2, 0.1]]))
    chain = filters.Filters(temperature=1.0, top_p=0.65, top_k=2)

    assert (chain.apply(logprobs) > -math.inf).tolist() == [[True, True, False, False]]
    assert (filters.top_p(filters.top_k(logprobs, 2), 0.5) > -math.inf).tolist() == [[True, False, False, False]]


@pytest.mark.parametrize("num_kept", [0, VOCAB, VOCAB + 1, 10**18])
def test_a_top_k_outside_the_vocabulary_keeps_everything(num_kept):
    logprobs = logprobs_of("spread", mx.float32, num_rows=1)

    assert mx.array_equal(filters.Filters(temperature=1.0, top_k=num_kept).apply(logprobs), logprobs)


@pytest.mark.parametrize("temperature", [0.0, 1e-7, 5e-324])
def test_a_vanishing_temperature_is_greedy(temperature):
    assert filters.Filters.of(SamplingParams(temperature=temperature, top_p=0.5)).is_greedy
