"""Plain full and sliding states against mlx-lm's caches: the same bits, whatever the order of steps."""

from collections.abc import Sequence

import mlx.core as mx
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.base import scaled_dot_product_attention
from mlx_lm.models.cache import KVCache, RotatingKVCache
from phyla.kv import Causal, LayerSpec, Mask, Plane, Windowed
from phyla.kv.plain.full import FullState
from phyla.kv.plain.ring import RingState
from phyla.testing.bits import assert_close, same_bits

K, H, D = 2, 6, 32
PLANES = (Plane("keys", K, D), Plane("values", K, D))
SCALE = D**-0.5
FULL = LayerSpec(0, "full", PLANES, scale=SCALE, num_query_heads=H)

widths = st.lists(st.sampled_from((1, 1, 1, 1, 2, 3, 7, 16, 31)), min_size=1, max_size=12)
repeatable = settings(max_examples=40, deadline=None, derandomize=True)


def made(seed: int, width: int, dtype: mx.Dtype = mx.float32) -> tuple[mx.array, mx.array, mx.array]:
    """Queries, keys and values of one step, laid out as a projection leaves them."""
    keys = mx.random.split(mx.random.key(seed), 3)
    queries = mx.random.normal((1, width, H, D), key=keys[0]).astype(dtype).transpose(0, 2, 1, 3)
    return (
        queries,
        mx.random.normal((1, width, K, D), key=keys[1]).astype(dtype).transpose(0, 2, 1, 3),
        mx.random.normal((1, width, K, D), key=keys[2]).astype(dtype).transpose(0, 2, 1, 3),
    )


def ours(state: FullState | RingState, schedule: Sequence[int], mask: Mask, dtype: mx.Dtype) -> list[mx.array]:
    outputs = []
    for seed, width in enumerate(schedule):
        queries, keys, values = made(seed, width, dtype)
        state.append(keys, values, (width,))
        outputs.append(state.attend(queries, mask, (width,)))
        mx.eval(outputs[-1], *state.buffers())
    return outputs


def theirs(
    cache: KVCache | RotatingKVCache, schedule: Sequence[int], window: int | None, dtype: mx.Dtype
) -> list[mx.array]:
    outputs = []
    for seed, width in enumerate(schedule):
        queries, keys, values = made(seed, width, dtype)
        mask = cache.make_mask(width, window_size=window, return_array=False)
        stored_keys, stored_values = cache.update_and_fetch(keys, values)
        outputs.append(scaled_dot_product_attention(queries, stored_keys, stored_values, cache, SCALE, mask))
        mx.eval(outputs[-1])
    return outputs


def all_same(got: Sequence[mx.array], want: Sequence[mx.array]) -> bool:
    return all(same_bits(one, other) for one, other in zip(got, want, strict=True))


@repeatable
@given(schedule=widths)
def test_full_attention_has_mlx_lms_bits(schedule: list[int]) -> None:
    state, cache = FullState(FULL), KVCache()
    assert all_same(ours(state, schedule, Causal(), mx.float32), theirs(cache, schedule, None, mx.float32))
    assert state.owned_bytes == cache.nbytes


def test_full_attention_has_mlx_lms_bits_across_slabs() -> None:
    schedule = [300, 1, 1, 211, 1, 257, 2, 1]
    state, cache = FullState(FULL), KVCache()
    assert all_same(ours(state, schedule, Causal(), mx.float32), theirs(cache, schedule, None, mx.float32))
    assert state.owned_bytes == cache.nbytes


def test_full_attention_has_mlx_lms_bits_in_bfloat16() -> None:
    schedule = [20, 1, 4, 1]
    got = ours(FullState(FULL), schedule, Causal(), mx.bfloat16)
    assert all_same(got, theirs(KVCache(), schedule, None, mx.bfloat16))


def test_a_windowed_layer_on_plain_storage_has_mlx_lms_bits() -> None:
    schedule = [5, 1, 9, 1, 1]
    got = ours(FullState(FULL), schedule, Windowed(6), mx.float32)
    assert all_same(got, theirs(KVCache(), schedule, 6, mx.float32))


@repeatable
@given(schedule=widths, window=st.sampled_from((4, 8, 16, 33)))
def test_a_ring_has_mlx_lms_bits(schedule: list[int], window: int) -> None:
    state = RingState(LayerSpec(0, "sliding", PLANES, scale=SCALE, window=window, num_query_heads=H))
    cache = RotatingKVCache(window, keep=0)
    got = ours(state, schedule, Windowed(window), mx.float32)
    assert all_same(got, theirs(cache, schedule, window, mx.float32))
    assert state.owned_bytes == cache.nbytes


def test_a_ring_of_hundreds_grows_and_wraps_with_mlx_lms_bits() -> None:
    schedule = [1] * 300 + [40] + [1] * 30 + [500, 1, 1]
    state = RingState(LayerSpec(0, "sliding", PLANES, scale=SCALE, window=290, num_query_heads=H))
    got = ours(state, schedule, Windowed(290), mx.float32)
    assert all_same(got, theirs(RotatingKVCache(290, keep=0), schedule, 290, mx.float32))


def test_a_window_smaller_than_the_ring_has_mlx_lms_bits() -> None:
    schedule = [6] + [1] * 20
    state = RingState(LayerSpec(0, "sliding", PLANES, scale=SCALE, window=12, num_query_heads=H))
    got = ours(state, schedule, Windowed(5), mx.float32)
    assert all_same(got, theirs(RotatingKVCache(12, keep=0), schedule, 5, mx.float32))


def test_capped_scores_equal_the_written_out_formula() -> None:
    cap = 3.0
    state = FullState(LayerSpec(0, "full", PLANES, scale=SCALE, softcap=cap, num_query_heads=H))
    queries, keys, values = made(0, 9)
    state.append(keys, values, (9,))
    got = state.attend(queries, Causal(), (9,))
    scores = (queries @ mx.repeat(keys, H // K, axis=1).swapaxes(-1, -2)) * SCALE
    scores = mx.where(mx.tril(mx.ones((9, 9), dtype=mx.bool_)), cap * mx.tanh(scores / cap), -mx.inf)
    want = mx.softmax(scores, axis=-1) @ mx.repeat(values, H // K, axis=1)
    assert_close(got, want, atol=1e-5, why="another order of operations")


def test_sinks_take_weight_with_and_without_a_softcap() -> None:
    sinks = mx.random.normal((H,), key=mx.random.key(5))
    queries, keys, values = made(0, 9)
    plain, capped = FullState(FULL), FullState(LayerSpec(0, "full", PLANES, scale=SCALE, softcap=1e4))
    plain.append(keys, values, (9,))
    capped.append(keys, values, (9,))
    fused = plain.attend(queries, Causal(), (9,), sinks)
    assert_close(capped.attend(queries, Causal(), (9,), sinks), fused, atol=1e-4, why="a cap far above the scores")
    assert float(mx.abs(fused - plain.attend(queries, Causal(), (9,))).max()) > 1e-3
