"""The kernel that norms, rotates and stores at once: who uses it, and, where there is a CUDA device, its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from phyla.errors import UsageError
from phyla.kv.group_append import scatter
from phyla.kv.group_geometry import usable_append, why_not_rotated
from phyla.kv.layer_spec import FULL, LayerSpec, Plane
from phyla.kv.rotated_append import rotate_and_store
from phyla.kv.rotation import HeadNorms, Rotation

from benchmarks.cuda_suite import chosen_parts, compared_steps


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


def test_without_a_device_it_is_refused(tmp_path: Path) -> None:
    if mx.cuda.is_available():
        return
    with pytest.raises(UsageError, match="append=rotated: it is a CUDA kernel"):
        chosen_parts("tiny", tmp_path, strategy="append=rotated")


@pytest.mark.parametrize("model", ["tiny"])
def test_a_step_gives_it_what_it_would_do_itself(
    on_cuda: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: str
) -> None:
    """Traced and not, with dead seats and rows that leave: in the kernel's place, the same by MLX's own operations."""
    calls = []

    def counted(
        projected: mx.array, planes: Sequence[mx.array], rotation: Rotation, offsets: mx.array, starts: mx.array
    ) -> tuple[mx.array, list[mx.array]]:
        calls.append(projected.shape)
        return plainly(projected, planes, rotation, offsets, starts)

    monkeypatch.setattr("phyla.kv.stacked.key_values.rotate_and_store", counted)
    for comparison in compared_steps(model, "float32", "attention=grouped,append=rotated", tmp_path):
        assert comparison["passed"], comparison
    assert calls


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
    expected, stored = plainly(projected, planes, rotation, starts + 5000, starts)
    mx.eval(expected, stored)
    queries, planes = rotate_and_store(projected, planes, rotation, starts + 5000, starts)
    # One rounding of what is given back; sines of large angles differ in their last bits.
    bound = {mx.float32: 1e-4, mx.float16: 2e-3, mx.bfloat16: 1.6e-2}[dtype]
    for got, wanted in zip([queries, *planes], [expected, *stored], strict=True):
        np.testing.assert_allclose(np.array(got.astype(mx.float32)), np.array(wanted.astype(mx.float32)), atol=bound)


def plainly(
    projected: mx.array, planes: Sequence[mx.array], rotation: Rotation, offsets: mx.array, starts: mx.array
) -> tuple[mx.array, list[mx.array]]:
    """The kernel's twin, of MLX's own operations."""
    rows, key_heads, columns, head_dim = planes[0].shape
    width = projected.shape[0] // rows
    num_heads = projected.shape[1] // head_dim - 2 * key_heads
    cuts = [num_heads * head_dim, (num_heads + key_heads) * head_dim]
    parts = [part.reshape(rows, width, -1, head_dim) for part in mx.split(projected, cuts, axis=-1)]
    if rotation.norms is not None:
        weights = (rotation.norms.queries, rotation.norms.keys)
        parts[:2] = [
            mx.fast.rms_norm(part, weight, rotation.norms.eps) for part, weight in zip(parts[:2], weights, strict=True)
        ]
    queries, keys, values = (part.transpose(0, 2, 1, 3) for part in parts)
    queries, keys = (
        mx.fast.rope(
            one, rotation.num_dims, traditional=False, base=None, scale=1.0, offset=offsets, freqs=rotation.periods
        )
        for one in (queries, keys)
    )
    places = ((starts[:, None] + mx.arange(width)) % columns)[:, None, :, None]
    return queries, [scatter(plane, places, fresh) for plane, fresh in zip(planes, (keys, values), strict=True)]
