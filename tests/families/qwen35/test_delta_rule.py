"""The gated delta rule: its two forms, and its layer as storage sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phyla.kv import RECURRENT, LayerSpec, Plane
from phyla.kv.kinds import RecurrentCache
from phyla.testing.bits import assert_close, same_bits
from phyla.testing.layer_feeds import looked_up, padded_ids
from phyla.testing.layer_state import LayerStateContract
from phyla_qwen35.chunked_rule import chunked_rule
from phyla_qwen35.config import DeltaSizes
from phyla_qwen35.delta_layer import DECAY, MIXED, RATE, DeltaKernels, Recurrence
from phyla_qwen35.delta_rule import kept_share, normalised, recurrent_rule

SIZES = DeltaSizes(num_key_heads=2, num_value_heads=4, key_dim=16, value_dim=8, kernel=4)
CHUNKED_ATOL = 5e-6
"""Of outputs and states of order one, in float32."""


def recurrence(is_compiled: bool = True) -> Recurrence:
    """With random weights, the same each time."""
    keys = mx.random.split(mx.random.key(3), 3)
    return Recurrence(
        sizes=SIZES,
        convolution=0.5 * mx.random.normal((SIZES.mixed_width, SIZES.kernel, 1), key=keys[0]),
        stored_decay=mx.random.uniform(-4, 0.5, (SIZES.num_value_heads,), key=keys[1]),
        decay_bias=0.1 * mx.random.normal((SIZES.num_value_heads,), key=keys[2]),
        kernels=DeltaKernels(is_compiled),
    )


@dataclass
class DeltaFeed:
    """What a delta layer gives to its storage, as a function of token ids."""

    recurrence: Recurrence
    is_chunked: bool

    def step(self, storage: RecurrentCache, token_ids, num_real):
        run = self.recurrence.chunked if self.is_chunked else self.recurrence.recurrent
        return storage.advance(inputs_of(token_ids), run, num_real)


def inputs_of(token_ids: mx.array) -> Mapping[str, mx.array]:
    widths = {MIXED: SIZES.mixed_width, DECAY: SIZES.num_value_heads, RATE: SIZES.num_value_heads}
    return {name: looked_up(token_ids, 1, width, seed=at).squeeze(1) for at, (name, width) in enumerate(widths.items())}


class DeltaStateContract(LayerStateContract):
    layer = LayerSpec(
        0,
        RECURRENT,
        (
            Plane("conv", 1, SIZES.mixed_width, per_token=False, rows=SIZES.kernel - 1),
            Plane("state", SIZES.num_value_heads, SIZES.key_dim, False, rows=SIZES.value_dim, dtype="float32"),
        ),
    )


class TestRecurrentLayer(DeltaStateContract):
    def feed(self):
        return DeltaFeed(recurrence(), is_chunked=False)


class TestChunkedLayer(DeltaStateContract):
    def feed(self):
        return DeltaFeed(recurrence(), is_chunked=True)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    num_positions=st.integers(1, 200),
    decay=st.sampled_from((0.0, 1e-4, 0.1, 3.0, 90.0)),
    rate=st.sampled_from((-8.0, 0.0, 8.0)),
    alike=st.sampled_from((0.0, 1.0, 30.0)),
    seed=st.integers(0, 99),
)
def test_chunked_and_recurrent_forms_agree_over_lengths_and_gates(num_positions, decay, rate, alike, seed):
    """Also for keys that are almost the same, where the chunk's inverse is worst conditioned, and for states that are
    kept whole or lost at once."""
    keys = mx.random.split(mx.random.key(seed), 6)
    L, K, H = num_positions, SIZES.num_key_heads, SIZES.num_value_heads
    queries, ks = normalised(
        mx.random.normal((2, L, K, SIZES.key_dim), key=keys[0]),
        mx.random.normal((2, L, K, SIZES.key_dim), key=keys[1]) + alike,
    )
    values = mx.random.normal((2, L, H, SIZES.value_dim), key=keys[2])
    logs = -decay * mx.random.uniform(0.5, 1.5, (2, L, H), key=keys[3])
    rates = mx.sigmoid(rate + mx.random.normal((2, L, H), key=keys[4]))
    state = mx.random.normal((2, H, SIZES.value_dim, SIZES.key_dim), key=keys[5])
    got, got_state = chunked_rule(queries, ks, values, logs, rates, state)
    want, want_state = recurrent_rule(queries, ks, values, mx.exp(logs), rates, state)
    assert_close(got, want, atol=CHUNKED_ATOL, why="sums in another order")
    assert_close(got_state, want_state, atol=4 * CHUNKED_ATOL, why="sums in another order")


@pytest.mark.parametrize("is_chunked", [False, True])
def test_padded_rows_of_a_group_compute_what_each_computes_alone(is_chunked):
    one = recurrence()
    run = one.chunked if is_chunked else one.recurrent
    ids = padded_ids([[5, 9, 2, 7, 1, 30], [11, 4], [], [8]], 6, pad=63)
    num_real = (6, 2, 0, 1)
    _, before = run(inputs_of(mx.array([[1, 2, 3]] * 4)), {}, (3, 3, 3, 3))
    outputs, after = run(inputs_of(ids), before, num_real)
    for row, count in enumerate(num_real):
        own_before = {name: array[row : row + 1] for name, array in before.items()}
        own, own_after = run(inputs_of(ids[row : row + 1]), own_before, (count,))
        assert_close(outputs[row, :count], own[0, :count], atol=1e-6, why="more rows, other kernels")
        for name, array in own_after.items():
            assert_close(after[name][row], array[0], atol=1e-6, why="more rows, other kernels")


def test_what_stands_in_padded_places_is_never_seen():
    one, ids = recurrence(), mx.array([[5, 9, 2], [4, 1, 1]])
    inputs = inputs_of(ids)
    spoilt = {name: mx.where(mx.arange(3)[None, :, None] < 1, array, mx.nan) for name, array in inputs.items()}
    clean, spoilt = ((one.recurrent(given, {}, (1, 1))) for given in (inputs, spoilt))
    assert all(same_bits(clean[1][name], spoilt[1][name]) for name in clean[1])
    assert same_bits(clean[0][:, :1], spoilt[0][:, :1])


def test_compiled_kernels_compute_what_the_plain_ones_do():
    inputs = inputs_of(mx.array([[5, 9, 2, 4]]))
    compiled, plain = (recurrence(is_compiled).recurrent(inputs, {}, (4,)) for is_compiled in (True, False))
    assert_close(compiled[0], plain[0], atol=1e-6, why="compiled kernels may contract operations")
    assert_close(compiled[1]["state"], plain[1]["state"], atol=1e-6, why="compiled kernels may contract operations")


def test_a_decay_is_kept_in_float32_whatever_the_weights_are_in():
    stored, inputs, bias = (mx.zeros((4,), dtype=mx.bfloat16) for _ in range(3))
    assert kept_share(stored, inputs, bias).dtype == mx.float32
