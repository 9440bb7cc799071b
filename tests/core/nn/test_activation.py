"""Gated activations against mlx's own layers, plain and compiled."""

import mlx.core as mx
import mlx.nn
import pytest
from mlx_lm.models.activations import swiglu as mlx_lm_swiglu
from phyla.nn.activation import fused, geglu, geglu_tanh, swiglu, swiglu_by_powers
from phyla.testing.close import assert_close
from phyla.testing.weights import random_tensors

TENSORS = random_tensors({"gate": (1, 33, 96), "up": (1, 33, 96)})
GATE, UP = 40 * TENSORS["gate"], TENSORS["up"]


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_compiled_swiglu_has_the_bits_of_mlx_lm(dtype):
    gate, up = GATE.astype(dtype), UP.astype(dtype)
    assert mx.array_equal(fused(swiglu, compiled=True)(gate, up), mlx_lm_swiglu(gate, up))


@pytest.mark.parametrize(
    ("activation", "reference"),
    [(swiglu, mlx.nn.silu), (geglu, mlx.nn.gelu), (geglu_tanh, mlx.nn.gelu_approx)],
)
@pytest.mark.parametrize("compiled", [False, True])
def test_activations_agree_with_mlx(activation, reference, compiled):
    got = fused(activation, compiled)(GATE, UP)
    assert_close(got, reference(GATE) * UP, atol=1e-6, why="another order of operations")


def test_the_fast_route_agrees_and_the_exact_one_keeps_its_bits():
    activation = fused(swiglu, compiled=True)
    fast, exact = activation.on_route("fast")(GATE, UP), activation.on_route("exact")(GATE, UP)
    assert mx.array_equal(exact, activation(GATE, UP))
    assert_close(fast, exact, atol=4e-6 * float(mx.abs(exact).max()), why="powers of two, on a CPU")


@pytest.mark.parametrize("gate", [-1e4, -100.0, 0.0, 100.0, 1e4])
def test_powers_of_two_stay_finite_where_gates_are_extreme(gate):
    got = swiglu_by_powers(mx.array([gate]), mx.array([2.0]))
    assert_close(got, mx.array([max(gate, 0.0) * 2]), atol=1e-30, why="a sigmoid of nearly 0 or 1")


def test_uncompiled_is_the_function_itself():
    assert fused(swiglu, compiled=False) is swiglu
