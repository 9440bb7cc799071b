"""Bias and penalties equal mlx-lm's bit for bit."""

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm import sample_utils as oracle
from phyla.request import SamplingParams
from phyla.sampling import processors

VOCAB = 64
HISTORY = [5, 9, 5, 5, 63, 0, 9, *range(20, 45), 5, 7, 7]


def logits_of(dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.array(np.random.default_rng(1).normal(0, 5, (1, VOCAB)).astype(np.float32)).astype(dtype)


def through(chain, history, logits):
    for process in chain:
        logits = process(history, logits)
    return logits


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("context_size", [0, 1, 3, 20, 1000])
@pytest.mark.parametrize(
    "penalties",
    [
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 0.7},
        {"presence_penalty": 0.4},
        {"frequency_penalty": 0.1},
        {"frequency_penalty": -0.3},
        {"repetition_penalty": 1.1, "presence_penalty": -1.5, "frequency_penalty": 0.7},
    ],
)
def test_penalties_equal_the_oracle(dtype, context_size, penalties):
    sizes = {name.replace("penalty", "context_size"): context_size for name in penalties}
    params = SamplingParams(**penalties, **sizes)

    got = through(processors.built_in_processors(params, VOCAB), HISTORY, logits_of(dtype))
    want = through(oracle.make_logits_processors(**penalties, **sizes), mx.array(HISTORY), logits_of(dtype))

    assert got.dtype == want.dtype
    assert mx.array_equal(got, want)


def test_bias_equals_the_oracle_and_comes_before_the_penalties():
    bias = {5: 3.5, 63: -100.0, 0: 0.25}
    params = SamplingParams(logit_bias=bias, repetition_penalty=1.7)

    got = through(processors.built_in_processors(params, VOCAB), HISTORY, logits_of())
    want = through(
        oracle.make_logits_processors(logit_bias=bias, repetition_penalty=1.7), mx.array(HISTORY), logits_of()
    )

    assert mx.array_equal(got, want)


@pytest.mark.parametrize(
    "params", [SamplingParams(), SamplingParams(repetition_penalty=1.0), SamplingParams(logit_bias={})]
)
def test_what_is_off_costs_nothing(params):
    assert processors.built_in_processors(params, VOCAB) == []


def test_an_empty_history_has_nothing_to_penalise():
    params = SamplingParams(repetition_penalty=2.0, presence_penalty=1.0, frequency_penalty=1.0)

    assert mx.array_equal(through(processors.built_in_processors(params, VOCAB), [], logits_of()), logits_of())


@pytest.mark.parametrize("num_drafted", [1, 2, 3, 5])
@pytest.mark.parametrize("context_size", [0, 1, 3, 20, 1000])
@pytest.mark.parametrize("penalty", ["repetition", "presence", "frequency"])
def test_ids_still_on_the_device_count_like_the_historys(penalty, context_size, num_drafted):
    params = SamplingParams(**{f"{penalty}_penalty": 1.3, f"{penalty}_context_size": context_size})
    [process] = processors.built_in_processors(params, VOCAB)
    drafted = mx.array(HISTORY[-num_drafted:], dtype=mx.int32)

    got = process(HISTORY[:-num_drafted], logits_of(), drafted)

    assert mx.array_equal(got, process(HISTORY, logits_of()))
    assert mx.array_equal(process([], logits_of(), drafted), process(HISTORY[-num_drafted:], logits_of()))


def test_ids_without_a_logit_are_passed_over():
    params = SamplingParams(repetition_penalty=2.0, frequency_penalty=1.0, logit_bias={VOCAB: 5.0, 2: 1.0})
    chain = processors.built_in_processors(params, VOCAB)

    assert mx.array_equal(through(chain, [VOCAB + 3, 4], logits_of()), through(chain, [4], logits_of()))


def test_logits_given_to_a_processor_stay_as_they_were():
    logits = logits_of()
    params = SamplingParams(repetition_penalty=2.0, presence_penalty=1.0, logit_bias={3: 1.0})

    through(processors.built_in_processors(params, VOCAB), HISTORY, logits)

    assert mx.array_equal(logits, logits_of())
