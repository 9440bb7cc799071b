"""Selection and attention in the latent space."""

import mlx.core as mx
from phyla.kv import Causal, LayerSpec, Plane
from phyla.kv.plain.latent import LatentState
from phyla.testing.bits import assert_close

LAYER = LayerSpec(0, "latent", (Plane("latent", 1, 8), Plane("rope", 1, 4), Plane("index", 1, 4)), scale=0.3)


def normal(seed: int, *shape: int) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed))


def state_with_index(index: mx.array) -> LatentState:
    width = index.shape[2]
    state = LatentState(LAYER)
    state.append({"latent": normal(1, 1, 1, width, 8), "rope": normal(2, 1, 1, width, 4), "index": index}, (width,))
    return state


def test_attention_in_the_latent_space_is_attention_with_joined_keys() -> None:
    state = state_with_index(mx.zeros((1, 1, 6, 4)))
    queries = normal(3, 1, 2, 6, 12)
    keys = mx.concatenate([normal(1, 1, 1, 6, 8), normal(2, 1, 1, 6, 4)], axis=-1)
    want = mx.fast.scaled_dot_product_attention(queries, keys, normal(1, 1, 1, 6, 8), scale=0.3, mask="causal")
    assert_close(state.attend(queries, Causal(), (6,)), want, atol=1e-5, why="scores are summed in two parts")


def test_equal_scores_go_to_the_lowest_position() -> None:
    state = state_with_index(mx.zeros((1, 1, 6, 4)))
    chosen = state.select(mx.ones((1, 2, 6, 4)), mx.ones((1, 6, 2)), 3, Causal(), (6,))
    assert chosen[0, 5].tolist() == [0, 1, 2]


def test_selection_takes_the_highest_scores_a_query_may_see() -> None:
    index = mx.array([1.0, 5.0, 3.0, 9.0, 2.0])[None, None, :, None] * mx.ones((1, 1, 5, 4))
    chosen = state_with_index(index).select(mx.ones((1, 1, 5, 4)), mx.ones((1, 5, 1)), 2, Causal(), (5,))
    assert chosen[0, 2].tolist() == [1, 2]
    assert chosen[0, 4].tolist() == [3, 1]


def test_selecting_more_than_is_stored_repeats_one_that_is() -> None:
    chosen = state_with_index(mx.zeros((1, 1, 2, 4))).select(
        mx.ones((1, 1, 2, 4)), mx.ones((1, 2, 1)), 4, Causal(), (2,)
    )
    assert chosen.shape == (1, 2, 4)
    assert chosen[0, 1].tolist() == [0, 1, 0, 0]


def test_selecting_everything_is_attending_to_everything() -> None:
    state = state_with_index(normal(7, 1, 1, 6, 4))
    queries = normal(3, 1, 2, 6, 12)
    everything = mx.broadcast_to(mx.arange(6), (1, 6, 6))
    want = state.attend(queries, Causal(), (6,))
    assert_close(state.attend(queries, Causal(), (6,), everything), want, atol=1e-6, why="the same columns")


def test_attention_looks_at_selected_columns_only() -> None:
    state = state_with_index(normal(7, 1, 1, 6, 4))
    only_first = mx.zeros((1, 6, 1), dtype=mx.uint32)
    looked = state.attend(normal(3, 1, 2, 6, 12), Causal(), (6,), only_first)
    assert_close(looked[0, 0], mx.broadcast_to(normal(1, 1, 1, 6, 8)[0, 0, :1], (6, 8)), atol=1e-6, why="one column")
