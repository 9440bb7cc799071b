"""The kernel for rows of different lengths: how its work is cut, and, where there is a CUDA device, its numbers."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from phyla.kv.group_attention import Scoring, grouped, ragged
from phyla.kv.group_geometry import usable_attention, why_not_ragged
from phyla.kv.layer_spec import FULL, LayerSpec, Plane
from phyla.kv.ragged_attention import LEAST_COLUMNS, WANTED_BLOCKS, Launch

HAS_CUDA = mx.cuda.is_available()


@pytest.mark.parametrize("queries", [1, 2, 3, 4, 7, 132])
@pytest.mark.parametrize("rows", [1, 8, 32])
@pytest.mark.parametrize("columns", [1, 63, 640, 16384])
def test_every_query_has_a_block_and_no_share_is_too_small(rows: int, columns: int, queries: int) -> None:
    launch = Launch.of(rows, 8, queries, columns)
    chunks = launch.blocks // (rows * 8)
    assert launch.blocks == rows * 8 * chunks
    assert chunks * launch.together >= queries > (chunks - 1) * launch.together
    assert launch.shares == 1 or columns // launch.shares >= LEAST_COLUMNS
    assert launch.shares == 1 or (launch.shares - 1) * launch.blocks < WANTED_BLOCKS


def test_heads_of_other_widths_are_left_to_other_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.cuda, "is_available", lambda: True)
    assert why_not_ragged(128, 128) is None
    assert "heads of 32, 64, 128, 256 numbers, and here keys have 96" in str(why_not_ragged(96, 96))
    assert "keys have 128 and values 64" in str(why_not_ragged(128, 64))
    assert "ragged" in usable_attention(_layer(128), is_capped=False, is_stacked=True)
    assert "ragged" not in usable_attention(_layer(96), is_capped=False, is_stacked=True)
    assert "ragged" not in usable_attention(_layer(128), is_capped=True, is_stacked=True)


def test_without_a_device_it_is_nobodys_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.cuda, "is_available", lambda: False)
    assert "no such device" in str(why_not_ragged(128, 128))
    assert "ragged" not in usable_attention(_layer(128), is_capped=False, is_stacked=False)


@pytest.mark.cuda
@pytest.mark.skipif(not mx.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16], ids=str)
@pytest.mark.parametrize(
    ("rows", "heads", "key_heads", "width", "columns", "head_dim"),
    [
        (1, 32, 8, 1, 640, 128),
        (32, 32, 8, 1, 640, 128),
        (4, 32, 8, 5, 1024, 128),
        (2, 9, 3, 1, 256, 64),
        (1, 8, 2, 1, 5000, 256),
        (5, 4, 4, 2, 33, 32),
    ],
)
def test_it_attends_like_its_twin(
    rows: int, heads: int, key_heads: int, width: int, columns: int, head_dim: int, dtype: mx.Dtype
) -> None:
    mx.random.seed(0)
    queries = mx.random.normal((rows, width, heads, head_dim)).astype(dtype).transpose(0, 2, 1, 3)
    # Views of a longer buffer, whose rest nobody may look at.
    keys, values = (
        mx.random.normal((rows, key_heads, columns + 9, head_dim)).astype(dtype)[:, :, :columns] for _ in range(2)
    )
    ends = mx.array([max(1, columns - width - 37 * row % columns) for row in range(rows)])[:, None] + mx.arange(width)
    visible = (mx.arange(columns) <= ends[..., None]) & (mx.arange(columns) > ends[..., None] - 300)
    scoring = Scoring(head_dim**-0.5)
    got = ragged(queries, keys, values, visible[:, None], scoring)
    with mx.stream(mx.cpu):
        wide = [one.astype(mx.float32) for one in (queries, keys, values)]
        expected = grouped(*wide, visible[:, None], scoring)
        worst = mx.abs(got.astype(mx.float32) - expected).max().item()
    # Rounding of what is given back, and of sums over up to 300 columns.
    bound = {mx.float32: 4e-6, mx.float16: 1e-3, mx.bfloat16: 8e-3}[dtype]
    assert worst <= bound * np.abs(np.array(expected)).max()


def _layer(head_dim: int) -> LayerSpec:
    planes = tuple(Plane(name, 8, head_dim) for name in ("keys", "values"))
    return LayerSpec(0, FULL, planes, num_query_heads=32)
