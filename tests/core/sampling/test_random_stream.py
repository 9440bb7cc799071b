"""Each row's draws come from its seed and step alone."""

import mlx.core as mx
import pytest
from phyla.sampling.random_stream import (
    categorical,
    fresh_seed,
    sample_seed,
    split_keys,
    step_key,
    step_keys,
    step_seed,
    uniforms,
)


@pytest.mark.parametrize("seed", [0, 1, -1, 2**32, 2**63, -(2**63), 10**30, -(10**30)])
def test_any_integer_is_a_seed_and_keys_are_mlxs_own(seed):
    assert mx.array_equal(step_key(seed, 7), mx.random.key(step_seed(seed, 7)))


def test_the_formula_of_a_step_is_fixed():
    assert step_seed(0, 0) == 0x9E3779B97F4A7C15
    assert step_seed(42, 1) == 42 ^ (2 * 0x9E3779B97F4A7C15 % 2**64)


def test_steps_of_a_seed_never_share_a_key():
    assert len({step_seed(12345, step) for step in range(100_000)}) == 100_000


def test_zero_is_a_seed_like_others():
    assert step_seed(0, 3) != step_seed(1, 3)


def test_fresh_seeds_differ():
    assert len({fresh_seed() for _ in range(64)}) > 60


def test_samples_of_one_request_have_streams_of_their_own():
    assert sample_seed(9, 0) == 9
    assert len({sample_seed(9, sample) for sample in range(8)}) == 8


def test_many_rows_draw_what_each_draws_alone():
    logits = mx.random.normal((6, 333), key=mx.random.key(0))
    keys = step_keys([(seed, 5 * seed) for seed in range(6)])

    together = categorical(logits, keys)
    alone = [mx.random.categorical(logits[row], key=keys[row]).item() for row in range(6)]

    assert together.tolist() == alone


def test_split_and_uniform_equal_the_one_row_forms():
    keys = step_keys([(seed, 3) for seed in range(5)])

    first, second = split_keys(keys)
    alone = [mx.random.split(keys[row]) for row in range(5)]

    assert mx.array_equal(first, mx.stack([one[0] for one in alone]))
    assert mx.array_equal(second, mx.stack([one[1] for one in alone]))
    assert uniforms(first)[:, 0].tolist() == [mx.random.uniform(key=first[row]).item() for row in range(5)]
