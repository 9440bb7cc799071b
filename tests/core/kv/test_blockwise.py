"""Attention by powers of two, in blocks of queries and of a group: the fast route's own, beside MLX's call."""

import mlx.core as mx
import pytest
from phyla.kv import LayerSpec, Plane
from phyla.kv.group_attention import Scoring, grouped
from phyla.kv.mask import Causal
from phyla.kv.plain.blockwise import BLOCK_QUERIES
from phyla.kv.plain.full import FullState
from phyla.kv.plain.ring import RingState
from phyla.kv.row_state import TARGET, RowState
from phyla.testing.close import assert_close

PLANES = (Plane("keys", 2, 8), Plane("values", 2, 16))
FULL = LayerSpec(0, "full", PLANES, scale=0.35, num_query_heads=6)
RING = LayerSpec(0, "sliding", PLANES, scale=0.35, window=400, num_query_heads=6)
CAPPED = LayerSpec(0, "full", PLANES, scale=0.35, softcap=5.0, num_query_heads=6)


def normal(seed: int, *shape: int) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed))


def attended(state: FullState | RingState, widths: list[int], *, is_fast: bool) -> mx.array:
    """Outputs of a row's steps of these widths, on either route."""
    if is_fast:
        RowState({TARGET: [state]}).leave_exact_route()
    outputs = []
    for seed, width in enumerate(widths):
        state.append(normal(3 * seed, 1, 2, width, 8), normal(3 * seed + 1, 1, 2, width, 16), (width,))
        outputs.append(state.attend(normal(3 * seed + 2, 1, 6, width, 8), Causal(), (width,)))
    return mx.concatenate(outputs, axis=2)


@pytest.mark.parametrize("kind", [FullState, RingState])
@pytest.mark.parametrize(
    "widths", [[2], [BLOCK_QUERIES], [BLOCK_QUERIES + 1], [3, 5 * BLOCK_QUERIES - 1], [1, 70, 1, 130]]
)
def test_blocks_give_what_one_call_gives(kind: type[FullState] | type[RingState], widths: list[int]) -> None:
    layer = FULL if kind is FullState else RING
    got, want = attended(kind(layer), widths, is_fast=True), attended(kind(layer), widths, is_fast=False)
    assert_close(got, want, atol=2e-6, why="other exponentials, other sums")
    assert not mx.array_equal(got, want), "both sides took the same way"


def test_a_score_far_above_the_others_takes_all_the_weight() -> None:
    state = FullState(FULL)
    RowState({TARGET: [state]}).leave_exact_route()
    keys, values = mx.zeros((1, 2, 100, 8)), normal(0, 1, 2, 100, 16)
    keys[:, :, 10] = 1e3
    state.append(keys, values, (100,))
    looked = state.attend(mx.full((1, 6, 100, 8), 1e3), Causal(), (100,))
    assert_close(looked[:, ::3, 99], values[:, :, 10], atol=0, why="every other weight is zero")
    assert_close(looked[:, ::3, 0], values[:, :, 0], atol=0, why="the first query sees itself alone")


def test_capped_scores_are_left_to_the_usual_way() -> None:
    got, want = attended(FullState(CAPPED), [70], is_fast=True), attended(FullState(CAPPED), [70], is_fast=False)
    assert mx.array_equal(got, want)


@pytest.mark.parametrize("sinks", [None, mx.zeros((6,))], ids=["powers", "exponentials"])
def test_a_group_attends_as_one_call_does(sinks: mx.array | None) -> None:
    queries, keys, values = normal(0, 3, 6, 4, 8), normal(1, 3, 2, 50, 8), normal(2, 3, 2, 50, 16)
    ends = mx.array([0, 20, 46])[:, None, None, None] + mx.arange(4)[:, None]
    visible = mx.arange(50) <= ends
    got = grouped(queries, keys, values, visible, Scoring(0.35, sinks=sinks))
    want = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=0.35, mask=visible, sinks=sinks)
    assert_close(got, want, atol=2e-6, why="other exponentials, other sums")
