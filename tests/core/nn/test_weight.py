"""Matrices: quantised ones multiply, gather and unpack as their dense twin; row views share bytes."""

import mlx.core as mx
import pytest
from phyla.nn.form import QuantForm
from phyla.nn.weight import Weight, stacked_rows
from phyla.testing.close import assert_close
from phyla.testing.weights import random_tensors

FORMS = [
    *(QuantForm(64, bits) for bits in (2, 3, 4, 5, 6, 8)),
    QuantForm(32, 4, "mxfp4"),
    QuantForm(32, 8, "mxfp8"),
    QuantForm(16, 4, "nvfp4"),
]


def random_matrix(num_rows, num_columns, name="w.weight"):
    return random_tensors({name: (num_rows, num_columns)})[name]


def quantised(matrix, form):
    data, scales, *biases = mx.quantize(matrix, group_size=form.group_size, bits=form.bits, mode=form.mode)
    return Weight(data, scales, biases[0] if biases else None, form)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_quantised_matrix_multiplies_as_its_unpacked_self(form):
    weight = quantised(random_matrix(96, 128), form)
    x = random_matrix(5, 128, "x")
    assert (weight.num_rows, weight.num_columns) == (96, 128)
    unpacked = weight.dense(mx.float32)
    assert_close(weight.multiply(x), unpacked.multiply(x), atol=1e-5, why="another order of sums")


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_gathered_rows_are_the_unpacked_rows(form):
    weight = quantised(random_matrix(96, 128), form)
    ids = mx.array([3, 0, 95, 3])
    rows = weight.gather(ids).astype(mx.float32)
    assert mx.array_equal(rows, weight.dense(mx.float32).data[ids])


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_unpacking_has_the_bits_of_mlx_in_float32_rounded_once(form, dtype):
    matrix = random_matrix(96, 128).astype(mx.float32 if form.mode != "affine" else mx.float16)
    weight = quantised(matrix, form)
    scales, biases = (
        array if array is None or array.dtype == mx.uint8 else array.astype(mx.float32)
        for array in (weight.scales, weight.biases)
    )
    want = mx.dequantize(
        weight.data, scales, biases, group_size=form.group_size, bits=form.bits, mode=form.mode, dtype=mx.float32
    )
    assert mx.array_equal(weight.dense(dtype).data, want.astype(dtype))


def test_a_dense_matrix_of_the_wanted_dtype_is_left_alone():
    weight = Weight(random_matrix(8, 8))
    assert weight.dense(mx.float32) is weight


def test_matrices_of_different_forms_are_not_stacked():
    with pytest.raises(AssertionError, match="forms"):
        stacked_rows([Weight(random_matrix(8, 64)), quantised(random_matrix(8, 64), QuantForm(64, 4))])
