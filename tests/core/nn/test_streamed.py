"""The kernel for products of a few rows: where it is a choice, and, where there is a CUDA device, its numbers."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from phyla.backend.strategy import MatmulGeometry, QmmGeometry, Strategies, parse_forced, shipped_table
from phyla.model.step import Route
from phyla.nn import linear, products
from phyla.nn.activation import CompiledActivation, GatedActivation, geglu, swiglu
from phyla.nn.form import QuantForm
from phyla.nn.linear import FusedLinear, Linear
from phyla.nn.mlp import GatedMLP
from phyla.nn.product_geometry import usable_products, why_not_streamed
from phyla.nn.products import FastProducts, whole
from phyla.nn.streamed import streamed, takes_form
from phyla.nn.weight import Weight
from phyla.testing.close import assert_close

CUDA = Strategies(shipped_table("cuda"))


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.cuda, "is_available", lambda: True)


@pytest.mark.parametrize(
    ("geometry", "reason"),
    [
        (MatmulGeometry(2, 16, 128), None),
        (MatmulGeometry(32, 4096, 14336), None),
        (QmmGeometry(8, 4096, 4096, 4), None),
        (MatmulGeometry(1, 4096, 4096), "2 to 32 rows, and here are 1"),
        (MatmulGeometry(33, 4096, 4096), "2 to 32 rows, and here are 33"),
        (MatmulGeometry(8, 4090, 4096), "16 outputs and 128 inputs, and here are 4090 and 4096"),
        (MatmulGeometry(8, 4096, 576), "here are 4096 and 576"),
        (QmmGeometry(8, 4096, 4096, 8), "4 bits, and here are 8"),
    ],
)
def test_sizes_that_it_was_not_written_for_are_left_to_other_ways(
    on_cuda: None, geometry: MatmulGeometry | QmmGeometry, reason: str | None
) -> None:
    found = why_not_streamed(geometry)
    assert (reason or "") in (found or "")
    assert (found is None) == (reason is None)
    assert ("streamed" in usable_products(CUDA, geometry)) == (reason is None)


def test_without_a_device_it_is_nobodys_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.cuda, "is_available", lambda: False)
    assert "no such device" in str(why_not_streamed(MatmulGeometry(8, 4096, 4096)))
    assert usable_products(CUDA, MatmulGeometry(8, 4096, 4096)) == {"whole"}


def test_numbers_that_it_was_not_written_for_are_left_to_other_ways(on_cuda: None) -> None:
    matrix = mx.zeros((16, 128), dtype=mx.bfloat16)
    assert takes_form(Weight(matrix), mx.bfloat16)
    assert not takes_form(Weight(matrix), mx.float32)
    assert not takes_form(Weight(matrix.astype(mx.float32)), mx.bfloat16)
    for group, bits, is_taken in ((64, 4, True), (32, 4, True), (64, 8, False)):
        packed = Weight(*mx.quantize(matrix, group_size=group, bits=bits), form=QuantForm(group, bits))
        assert takes_form(packed, mx.bfloat16) == is_taken
    fast = FastProducts(Strategies(shipped_table("cuda"), parse_forced("matmul=streamed")))
    assert fast.product(Weight(matrix), mx.zeros((4, 128), dtype=mx.bfloat16)) is streamed
    assert fast.product(Weight(matrix), mx.zeros((4, 128))) is whole
    assert fast.product(Weight(matrix), mx.zeros((1, 128), dtype=mx.bfloat16)) is whole


def gated_plainly(weight: Weight, x: mx.array) -> mx.array:
    """The twin of `streamed_gated`."""
    return swiglu(*mx.split(weight.multiply(x), 2, axis=-1))


@pytest.mark.parametrize(
    ("activation", "outputs", "rows", "route", "is_gated"),
    [
        (swiglu, (32, 32), 4, "fast", True),
        (CompiledActivation(swiglu), (32, 32), 4, "fast", True),
        (swiglu, (32, 32), 4, "exact", False),
        (swiglu, (32, 32), 1, "fast", False),
        (geglu, (32, 32), 4, "fast", False),
        # Halves that no block of the kernel's has.
        (swiglu, (24, 24), 4, "fast", False),
    ],
    ids=["swiglu", "compiled", "exact", "one-row", "geglu", "sizes"],
)
def test_swiglu_is_part_of_a_streamed_product(
    on_cuda: None,
    monkeypatch: pytest.MonkeyPatch,
    activation: GatedActivation,
    outputs: tuple[int, int],
    rows: int,
    route: Route,
    is_gated: bool,
) -> None:
    calls: list[Weight] = []

    def gated(weight: Weight, x: mx.array) -> mx.array:
        calls.append(weight)
        return gated_plainly(weight, x)

    def product(weight: Weight, x: mx.array) -> mx.array:
        return weight.multiply(x)

    for module in (linear, products):
        monkeypatch.setattr(module, "streamed", product)
    monkeypatch.setattr(products, "PRODUCTS", {"whole": whole, "streamed": product})
    monkeypatch.setattr(linear, "streamed_gated", gated)

    def drawn(seed: int, *sizes: int) -> mx.array:
        return mx.random.normal(sizes, key=mx.random.key(seed)).astype(mx.bfloat16)

    fast = FastProducts(Strategies(shipped_table("cuda"), parse_forced("matmul=streamed")))
    gate_up = FusedLinear([Linear(Weight(drawn(seed, size, 128)), None, fast) for seed, size in enumerate(outputs)])
    mlp = GatedMLP(gate_up, Linear(Weight(drawn(2, 128, outputs[0]))), activation)
    x = drawn(3, 1, rows, 128)
    got = mlp(x, route)
    assert len(calls) == is_gated
    monkeypatch.setattr(FusedLinear, "gated", lambda self, x: None)
    # Of bfloat16 numbers; compiled, the activation rounds once and not thrice.
    assert_close(got, mlp(x, route), atol=2e-2 * float(mx.abs(got).max().item()), why="bfloat16, other roundings")


@pytest.mark.cuda
@pytest.mark.skipif(not mx.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16], ids=str)
@pytest.mark.parametrize("group", [None, 32, 64, 128])
@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(2, 16, 128), (7, 48, 896), (16, 512, 4096), (31, 4096, 1536)])
def test_it_multiplies_like_its_twin(rows: int, outputs: int, inputs: int, group: int | None, dtype: mx.Dtype) -> None:
    mx.random.seed(0)
    matrix = mx.random.normal((outputs, inputs)).astype(dtype)
    x = mx.random.normal((1, rows, inputs)).astype(dtype)
    weight = Weight(matrix)
    if group is not None:
        weight = Weight(*mx.quantize(matrix, group_size=group, bits=4), form=QuantForm(group, 4))
    got = streamed(weight, x)
    with mx.stream(mx.cpu):
        expected = x.astype(mx.float32) @ weight.dense(mx.float32).data.T
        worst = mx.abs(got.astype(mx.float32) - expected).max().item()
    # Rounding of what is given back, and of numbers that are unpacked to the rows' own dtype.
    bound = {mx.float16: 2e-3, mx.bfloat16: 1e-2}[dtype]
    assert worst <= bound * np.abs(np.array(expected)).max()
