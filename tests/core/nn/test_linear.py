"""Fused layers: stored once, and on the exact route the bits of separate ones."""

import mlx.core as mx
import numpy as np
import pytest
from phyla.nn.form import QuantForm
from phyla.nn.linear import FusedLinear, Linear
from phyla.nn.weight import Weight
from phyla.testing.close import assert_close
from phyla.testing.weights import random_tensors

SIZES = (256, 64, 64)
NUM_INPUTS = 256


def linears(kind, bias):
    tensors = random_tensors(
        {f"{part}.weight": (size, NUM_INPUTS) for part, size in zip("qkv", SIZES, strict=True)}
        | {f"{part}.bias": (size,) for part, size in zip("qkv", SIZES, strict=True)}
    )
    return [
        Linear(stored(tensors[f"{part}.weight"], kind), cast(tensors[f"{part}.bias"], kind) if bias else None)
        for part in "qkv"
    ]


def cast(array, kind):
    return array.astype(mx.float32 if kind == "float32" else mx.bfloat16)


def stored(matrix, kind):
    if kind != "4 bit":
        return Weight(cast(matrix, kind))
    return Weight(*mx.quantize(matrix.astype(mx.bfloat16), group_size=64, bits=4), form=QuantForm(64, 4))


def random_input(num_positions, kind):
    return cast(random_tensors({"x": (1, num_positions, NUM_INPUTS)})["x"], kind)


@pytest.mark.parametrize("num_positions", [1, 2, 17, 300])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "4 bit"])
def test_the_exact_route_gives_the_bits_of_separate_layers(kind, bias, num_positions):
    separate = linears(kind, bias)
    fused = FusedLinear(linears(kind, bias))
    mx.eval(fused.arrays)
    x = random_input(num_positions, kind)
    assert all(mx.array_equal(got, part(x)) for got, part in zip(fused(x, "exact"), separate, strict=True))


def test_the_products_of_this_process_have_bits_that_depend_on_their_shape():
    """Else every bitwise test here would hold whatever the code does. (Those of few rows don't: `few_rows.h`.)"""
    weight = linears("float32", False)[0].weight
    x = random_input(40, "float32")
    assert not mx.array_equal(weight.multiply(x)[:, :1], weight.multiply(x[:, :1]))


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "4 bit"])
def test_the_fast_route_multiplies_once_and_agrees(kind):
    separate = linears(kind, True)
    fused = FusedLinear(linears(kind, True))
    x = random_input(5, kind)
    bound = 1e-5 if kind == "float32" else 2e-2
    for got, part in zip(fused(x, "fast"), separate, strict=True):
        assert_close(got, part(x), atol=bound, why=f"one wider product in {kind}")


@pytest.mark.parametrize("kind", ["float32", "4 bit"])
def test_the_views_share_the_fused_buffers(kind):
    fused = FusedLinear(linears(kind, True))
    mx.eval(fused.arrays)
    whole = fused.whole
    assert whole is not None
    starts = (0, SIZES[0], SIZES[0] + SIZES[1])
    for part, start in zip(fused.parts, starts, strict=True):
        for view, array in zip(part.arrays, whole.arrays, strict=True):
            stored_view, stored_whole = host(view), host(array)
            row_bytes = stored_whole.nbytes // stored_whole.shape[0]
            assert address(stored_view) - address(stored_whole) == start * row_bytes


def test_a_fused_layer_keeps_each_byte_once():
    mx.clear_cache()
    before = mx.get_active_memory()
    fused = FusedLinear(linears("float32", False))
    mx.eval(fused.arrays)
    held = mx.get_active_memory() - before
    assert held <= 1.02 * sum(SIZES) * NUM_INPUTS * 4


def test_layers_of_different_forms_stay_apart_on_both_routes():
    parts = [linears("bfloat16", False)[0], linears("4 bit", False)[1]]
    mixed = FusedLinear(parts)
    x = random_input(3, "bfloat16")
    assert mixed.whole is None
    for route in ("exact", "fast"):
        assert all(mx.array_equal(got, part(x)) for got, part in zip(mixed(x, route), parts, strict=True))


def host(array):
    """A numpy view of an array's own memory."""
    return np.array(array if array.dtype != mx.bfloat16 else array.view(mx.uint16), copy=False)


def address(array):
    return array.__array_interface__["data"][0]
