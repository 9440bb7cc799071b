"""The kernel that norms, rotates and stores at once: who uses it, and, where there is a CUDA device, its numbers."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from phyla.errors import UsageError
from phyla.kv.group_geometry import usable_append, why_not_rotated
from phyla.kv.kinds import NumReal
from phyla.kv.layer_spec import FULL, LayerSpec, Plane
from phyla.kv.mask import Causal, Mask
from phyla.kv.rotated_append import rotate_and_store
from phyla.kv.rotation import HeadNorms, Rotation
from phyla.model.step import StepInput
from phyla.nn.attention import Attention
from phyla.nn.linear import FusedLinear, Linear
from phyla.nn.norm import RMSNorm
from phyla.nn.rope import Rope
from phyla.nn.weight import Weight
from phyla.testing.close import assert_close
from phyla.testing.weights import random_tensors

from benchmarks.cuda_suite import chosen_parts, compared_steps, rotated_plainly


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.cuda, "is_available", lambda: True)


def test_rings_and_other_widths_are_left_to_other_ways(on_cuda: None) -> None:
    assert why_not_rotated(128, 128, wraps=False) is None
    assert "in place, which a ring" in str(why_not_rotated(128, 128, wraps=True))
    assert "keys have 128 and values 64" in str(why_not_rotated(128, 64, wraps=False))
    layer = LayerSpec(0, FULL, (Plane("keys", 2, 64), Plane("values", 2, 64)))
    assert usable_append(layer, wraps=False) == {"scatter", "slices", "rotated"}
    assert usable_append(layer, wraps=True) == {"scatter", "slices"}


def test_without_a_device_it_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mx.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="append=rotated: it is a CUDA kernel"):
        chosen_parts("tiny", tmp_path, strategy="append=rotated")


def test_a_step_gives_it_what_it_would_do_itself(
    on_cuda: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Traced and not, with dead seats and rows that leave: in the kernel's place, the same by MLX's own operations."""
    calls = []

    def counted(
        projected: mx.array, planes: Sequence[mx.array], rotation: Rotation, offsets: mx.array, starts: mx.array
    ) -> tuple[mx.array, list[mx.array]]:
        calls.append(projected.shape)
        return rotated_plainly(projected, planes, rotation, offsets, starts)

    monkeypatch.setattr("phyla.kv.stacked.key_values.rotate_and_store", counted)
    for comparison in compared_steps("tiny", "float32", "attention=grouped,append=rotated", tmp_path):
        assert comparison["passed"], comparison
    assert calls


class Noting:
    """Storage of one row and four columns that says what it was given, whole or in parts."""

    def __init__(self, rotates: bool) -> None:
        self.rotates = rotates
        self.given: list[mx.array] = []

    def append(self, keys: mx.array, values: mx.array, num_real: NumReal) -> None:
        self.given += [keys, values]

    def rotate_and_store(self, projected: mx.array, rotation: Rotation, offsets: mx.array) -> mx.array:
        planes = [mx.zeros((1, 2, 4, 32)) for _ in range(2)]
        queries, stored = rotated_plainly(projected, planes, rotation, offsets, mx.array([0]))
        self.given += [plane[:, :, : projected.shape[0]] for plane in stored]
        return queries

    def attend(self, queries: mx.array, mask: Mask, num_real: NumReal, sinks: mx.array | None = None) -> mx.array:
        self.given.append(queries)
        return queries


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("rope", [Rope(32, base=10000.0), Rope(16, base=500.0, position_scale=0.25)])
@pytest.mark.parametrize("normed", [False, True])
def test_norms_and_rotations_are_those_of_the_layer(on_cuda: None, normed: bool, rope: Rope, width: int) -> None:
    drawn = random_tensors({"qkv": (8 * 32, 64), "out": (64, 4 * 32), "q": (32,), "k": (32,), "x": (width, 64)})
    parts = [Linear(Weight(one)) for one in mx.split(drawn["qkv"], [128, 192])]
    norms = [RMSNorm(1 + drawn[name], 1e-5) if normed else None for name in "qk"]
    attention = Attention(FusedLinear(parts), Linear(Weight(drawn["out"])), rope, 4, 2, Causal(), *norms)
    step = StepInput(mx.zeros((1, width), dtype=mx.int32), (width,), mx.array([900], dtype=mx.int32), route="fast")
    whole, apart = Noting(rotates=True), Noting(rotates=False)
    outputs = [attention(drawn["x"], step, cache) for cache in (whole, apart)]  # type: ignore[arg-type]
    for got, expected in zip([outputs[0], *whole.given], [outputs[1], *apart.given], strict=True):
        assert_close(got, expected, atol=2e-4, why="float32: frequencies from a table, at angles of 900")


@pytest.mark.parametrize("rope", [Rope(32, base=10000.0, interleaved=True), Rope(32, base=10000.0, input_scale=1.5)])
def test_heads_that_turn_in_other_ways_are_rotated_by_the_layer(rope: Rope) -> None:
    assert rope.rotation is None


def test_a_trace_finds_the_periods_ready() -> None:
    rotation = Rope(32, base=10000.0).rotation
    assert rotation is not None
    graph = io.StringIO()
    mx.export_to_dot(graph, doubled=rotation.periods * 2)
    assert "Multiply" in graph.getvalue()
    assert "Divide" not in graph.getvalue()


@pytest.mark.cuda
@pytest.mark.skipif(not mx.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16], ids=str)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(
    ("heads", "key_heads", "head_dim", "num_dims"), [(32, 8, 128, 128), (9, 3, 64, 64), (8, 2, 256, 64)]
)
@pytest.mark.parametrize("width", [1, 4])
def test_it_stores_like_its_twin(
    width: int, heads: int, key_heads: int, head_dim: int, num_dims: int, normed: bool, dtype: mx.Dtype
) -> None:
    mx.random.seed(0)
    rows, columns = 3, 40
    projected = mx.random.normal((rows * width, (heads + 2 * key_heads) * head_dim)).astype(dtype)
    planes = [mx.random.normal((rows, key_heads, columns, head_dim)).astype(dtype) for _ in range(2)]
    norms = [(1 + 0.1 * mx.random.normal((head_dim,))).astype(dtype) for _ in range(2)]
    periods = 10000.0 ** (mx.arange(0, num_dims, 2, dtype=mx.float32) / num_dims)
    rotation = Rotation(num_dims, periods, HeadNorms(norms[0], norms[1], 1e-6) if normed else None)
    starts = mx.array([0, 17, columns - width], dtype=mx.int32)
    expected, stored = rotated_plainly(projected, planes, rotation, starts + 5000, starts)
    mx.eval(expected, stored)
    queries, planes = rotate_and_store(projected, planes, rotation, starts + 5000, starts)
    # One rounding of what is given back; sines of large angles differ in their last bits.
    bound = {mx.float32: 1e-4, mx.float16: 2e-3, mx.bfloat16: 1.6e-2}[dtype]
    for got, wanted in zip([queries, *planes], [expected, *stored], strict=True):
        np.testing.assert_allclose(np.array(got.astype(mx.float32)), np.array(wanted.astype(mx.float32)), atol=bound)
