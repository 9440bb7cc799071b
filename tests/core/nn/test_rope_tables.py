"""Shared tables give the bits of `mx.fast.rope` on a CPU."""

from __future__ import annotations

import mlx.core as mx
import pytest
from phyla.nn.rope import Rope, llama3_periods, yarn_periods
from phyla.nn.rope_tables import RopeTables

LLAMA3 = {"factor": 8.0, "original_max_position_embeddings": 64}
YARN = {"factor": 4.0, "original_max_position_embeddings": 64}


def heads(num_positions: int, width: int = 64) -> mx.array:
    return mx.random.normal((2, 3, num_positions, width), key=mx.random.key(num_positions))


def by_mlx(x: mx.array, num_dims: int, base: float | None, periods: mx.array | None, scale: float, at: int) -> mx.array:
    return mx.fast.rope(x, num_dims, traditional=False, base=base, scale=scale, offset=at, freqs=periods)


@pytest.mark.parametrize(("num_positions", "offset"), [(1, 0), (1, 4097), (17, 5), (300, 1000)])
@pytest.mark.parametrize("base", [10000.0, 1e6])
def test_plain_periods_have_the_bits_of_mlx(num_positions: int, offset: int, base: float) -> None:
    x = heads(num_positions)
    got = RopeTables(64, base, None, 1.0).rotate(x, offset)
    assert mx.array_equal(got, by_mlx(x, 64, base, None, 1.0, offset)).item()


@pytest.mark.parametrize("periods", [llama3_periods(64, 10000.0, LLAMA3), yarn_periods(64, 10000.0, YARN)])
def test_stretched_periods_have_the_bits_of_mlx(periods: mx.array) -> None:
    x = heads(33)
    got = RopeTables(64, None, periods, 1.0).rotate(x, 77)
    assert mx.array_equal(got, by_mlx(x, 64, None, periods, 1.0, 77)).item()


def test_scaled_positions_have_the_bits_of_mlx() -> None:
    x = heads(33)
    got = RopeTables(64, 10000.0, None, 0.25).rotate(x, 77)
    assert mx.array_equal(got, by_mlx(x, 64, 10000.0, None, 0.25, 77)).item()


def test_numbers_past_the_rotated_ones_pass() -> None:
    x = heads(9, width=96)
    got = RopeTables(64, 10000.0, None, 1.0).rotate(x, 3)
    assert mx.array_equal(got, by_mlx(x, 64, 10000.0, None, 1.0, 3)).item()
    assert mx.array_equal(got[..., 64:], x[..., 64:]).item()


def test_tables_follow_the_position() -> None:
    tables, x = RopeTables(64, 10000.0, None, 1.0), heads(4)
    first, second, again = (tables.rotate(x, offset) for offset in (0, 8, 0))
    assert not mx.array_equal(first, second).item()
    assert mx.array_equal(first, again).item()


@pytest.mark.parametrize("num_positions", [1, 5])
def test_rows_with_offsets_of_their_own_have_the_bits_of_mlx(num_positions: int) -> None:
    x, offsets = heads(num_positions, width=96), mx.array([5, 4097], dtype=mx.int32)
    got = RopeTables(64, 10000.0, None, 1.0).rotate(x, offsets)
    expected = mx.fast.rope(x, 64, traditional=False, base=10000.0, scale=1.0, offset=offsets)
    assert mx.array_equal(got, expected).item()


def test_tables_follow_the_rows_offsets() -> None:
    tables, x = RopeTables(64, 10000.0, None, 1.0), heads(4)
    offsets = (mx.array([0, 8]), 8, mx.array([8, 0]), mx.array([0, 8]))
    first, same, swapped, again = (tables.rotate(x, offset) for offset in offsets)
    assert not mx.array_equal(first, swapped).item()
    assert mx.array_equal(first[1], same[1]).item()
    assert mx.array_equal(first, again).item()


def test_halves_are_rotated_in_mlx_itself() -> None:
    x = heads(5).astype(mx.float16)
    expected = mx.fast.rope(x, 64, traditional=False, base=10000.0, scale=1.0, offset=2)
    assert mx.array_equal(Rope(64, base=10000.0)(x, 2), expected).item()
