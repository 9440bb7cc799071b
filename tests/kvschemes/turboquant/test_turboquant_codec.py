"""The codec against its definition: codebooks, rotation, packing, keys, values."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phyla.testing.bits import assert_close, same_bits
from phyla_turboquant.codebooks import CENTROIDS, boundaries
from phyla_turboquant.codec import CELLS_TOGETHER, KeyCodec, ValueCodec
from phyla_turboquant.packing import packed, unpacked
from phyla_turboquant.rotation import Rotation
from phyla_turboquant.spec import HEAD_DIMS, KEY_BITS, VALUE_BITS

from tests.kvschemes.turboquant.lloyd_max import lloyd_max


@pytest.mark.parametrize("bits", [2, 4, 5, 8])
def test_codebooks_are_what_float64_computes(bits: int) -> None:
    np.testing.assert_allclose(CENTROIDS[bits], lloyd_max(bits), atol=2e-6)


@pytest.mark.parametrize("bits", VALUE_BITS)
def test_cells_ascend_and_boundaries_lie_between(bits: int) -> None:
    centroids, between = np.array(CENTROIDS[bits]), np.array(boundaries(bits))
    assert len(centroids) == 2**bits
    assert np.all(centroids[:-1] < between)
    assert np.all(between < centroids[1:])


def test_the_three_bit_book_has_its_published_boundaries() -> None:
    assert boundaries(3) == (-1.74793, -1.04996, -0.50055, 0.0, 0.50055, 1.04996, 1.74793)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_the_rotation_is_signs_then_sylvesters_matrix(head_dim: int) -> None:
    rows = normal(3, head_dim)
    matrix = np.array([[1.0]])
    while len(matrix) < head_dim:
        matrix = np.kron(np.array([[1, 1], [1, -1]]), matrix)
    # The signs: MLX's own random integers of key 42.
    signs = 1 - 2 * np.array(mx.random.randint(0, 2, (head_dim,), key=mx.random.key(42)))
    expected = (np.array(rows) * signs) @ matrix / np.sqrt(head_dim)
    np.testing.assert_allclose(np.array(Rotation(head_dim).forward(rows)), expected, atol=1e-5)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_the_rotation_is_undone_and_keeps_lengths(head_dim: int) -> None:
    rotation, rows = Rotation(head_dim), normal(5, head_dim)
    turned = rotation.forward(rows)
    assert_close(rotation.inverse(turned), rows, atol=1e-5, why="float32")
    assert_close(mx.linalg.norm(turned, axis=-1), mx.linalg.norm(rows, axis=-1), atol=1e-4, why="float32")


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_a_product_with_the_matrix_is_the_same_rotation(head_dim: int) -> None:
    rows = normal(5, head_dim)
    product, transform = Rotation(head_dim, "matrix"), Rotation(head_dim)
    assert_close(product.forward(rows), transform.forward(rows), atol=1e-5, why="sums in another order")
    assert_close(product.inverse(rows), transform.inverse(rows), atol=1e-5, why="sums in another order")


@pytest.mark.parametrize("bits", VALUE_BITS)
@pytest.mark.parametrize("width", HEAD_DIMS)
def test_packed_codes_are_one_little_endian_bitstream(bits: int, width: int) -> None:
    codes = mx.random.randint(0, 2**bits, (2, 3, width), key=mx.random.key(bits))
    stored = packed(codes, bits)
    assert stored.shape == (2, 3, width * bits // 8)
    assert mx.array_equal(unpacked(stored, bits), codes)
    together = CELLS_TOGETHER[bits]
    wide = unpacked(stored, bits, together)
    taken_apart = [(wide >> (bits * place)) & (2**bits - 1) for place in range(together)]
    assert mx.array_equal(mx.stack(taken_apart, axis=-1).reshape(codes.shape), codes)
    stream = sum(int(code) << (at * bits) for at, code in enumerate(codes[1, 2].tolist()))
    assert bytes(stored[1, 2].tolist()) == stream.to_bytes(width * bits // 8, "little")


@pytest.mark.parametrize(("bits", "bound"), [(2, 0.18), (4, 0.0072), (5, 0.0017), (8, 2.6e-5)])
def test_key_errors_stay_in_the_published_bands(bits: int, bound: float) -> None:
    assert mean_square_error(normal(4000, 128), bits, keys=True) < bound


@pytest.mark.parametrize(("bits", "bound"), [(2, 0.118), (3, 0.0345), (4, 0.0096), (5, 0.0026)])
def test_value_errors_stay_in_the_published_bands(bits: int, bound: float) -> None:
    assert mean_square_error(normal(4000, 128), bits, keys=False) < bound


@pytest.mark.parametrize("bits", KEY_BITS)
def test_keys_follow_the_formula_in_float64(bits: int) -> None:
    rows = normal(200, 64)
    groups = np.array(rows).astype(np.float64).reshape(200, 2, 32)
    low, high = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
    is_signed, cells = bits == 8, 254 if bits == 8 else 2**bits - 1
    scale = (high - low) / cells
    zero = np.round((high + low) / 2 / (scale + 1e-8)) if is_signed else np.round(low / (scale + 1e-8))
    limits = (-127, 127) if is_signed else (0, cells)
    codes = np.clip(np.round(groups / (scale + 1e-8) - zero), *limits).reshape(200, 64)
    stored, scales, zeros = KeyCodec(bits).encode(rows)
    got = np.array(stored if is_signed else unpacked(stored, bits)).astype(np.int64)
    # float32 and float64 may round apart exactly on the edge of a cell.
    assert np.mean(got != codes) < 1e-3
    np.testing.assert_array_equal(np.array(zeros), zero[..., 0].astype(np.float16))
    np.testing.assert_allclose(np.array(scales), scale[..., 0], rtol=1e-3)


@pytest.mark.parametrize("bits", KEY_BITS)
@pytest.mark.parametrize("number", [0.0, 1.0, -3.25, 1e-9, 40000.0])
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32])
def test_a_constant_group_of_keys_comes_back(bits: int, number: float, dtype: mx.Dtype) -> None:
    keys = mx.full((1, 64), number).astype(dtype)
    codec = KeyCodec(bits)
    assert_close(codec.decode(*codec.encode(keys)), keys, atol=abs(number) * 1e-3 + 1e-7, why="float16 midpoint")


@pytest.mark.parametrize("bits", VALUE_BITS)
@pytest.mark.parametrize("number", [0.0, 1.0, -3.25, 1e-9])
def test_constant_values_decode_to_numbers(bits: int, number: float) -> None:
    codec = ValueCodec(64, bits)
    decoded = codec.decode(*codec.encode(mx.full((1, 64), number)))
    assert not bool(mx.any(mx.isnan(decoded)))
    assert_close(decoded, mx.full((1, 64), number), atol=abs(number) * 3 + 1e-7, why="one number in each group")


@pytest.mark.parametrize("bits", KEY_BITS)
def test_a_tiny_range_far_from_zero_is_stored_as_its_middle(bits: int) -> None:
    keys = 100.0 + normal(1, 32) * 1e-5
    codec = KeyCodec(bits)
    assert_close(codec.decode(*codec.encode(keys)), keys, atol=0.05, why="float16 midpoint")


@settings(max_examples=30, deadline=None, derandomize=True)
@given(power=st.integers(-6, 6), bits=st.sampled_from(VALUE_BITS))
def test_scaling_values_by_a_power_of_two_scales_only_their_size(power: int, bits: int) -> None:
    codec, values = ValueCodec(64, bits), normal(4, 64)
    cells, sizes = codec.encode(values)
    scaled_cells, scaled_sizes = codec.encode(values * 2.0**power)
    assert np.mean(np.array(cells) != np.array(scaled_cells)) < 0.01
    assert_close(scaled_sizes / 2.0**power, sizes, atol=2e-3, why="float16")


@pytest.mark.parametrize("bits", VALUE_BITS)
def test_tokens_are_encoded_one_by_one(bits: int) -> None:
    codec, values = ValueCodec(128, bits), normal(9, 128)
    whole, single = codec.encode(values), [codec.encode(values[at : at + 1]) for at in range(9)]
    for plane, rows in zip(whole, zip(*single, strict=True), strict=True):
        assert same_bits(plane, mx.concatenate(rows))


def normal(num_rows: int, width: int) -> mx.array:
    return mx.random.normal((num_rows, width), key=mx.random.key(num_rows + width))


def mean_square_error(rows: mx.array, bits: int, *, keys: bool) -> float:
    codec = KeyCodec(bits) if keys else ValueCodec(rows.shape[-1], bits)
    return float(mx.mean(mx.square(codec.decode(*codec.encode(rows)) - rows)))
