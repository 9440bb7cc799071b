"""Ways of multiplying by a quantised matrix: the same numbers, and only on the fast route."""

import mlx.core as mx
import pytest
from phyla.backend.strategy import Strategies, StrategyTable, parse_forced, shipped_table
from phyla.nn.embedding import Embedding
from phyla.nn.form import QuantForm
from phyla.nn.linear import FusedLinear, Linear
from phyla.nn.products import FastProducts, product_named
from phyla.nn.weight import Weight
from phyla.testing.close import assert_close
from phyla.testing.weights import random_tensors


def quantised(mode="affine", num_rows=96):
    form = QuantForm(32, 4, mode)
    matrix = random_tensors({"w": (num_rows, 128)})["w"]
    return Weight(*_three(mx.quantize(matrix, group_size=32, bits=4, mode=mode)), form=form)


def _three(parts):
    return (*parts, None)[:3]


def inputs(*shape):
    return random_tensors({"x": shape}, seed=1)["x"]


class Counting(Weight):
    """A matrix that notes how many rows each product has."""

    def __init__(self, weight, seen):
        super().__init__(weight.data, weight.scales, weight.biases, weight.form)
        object.__setattr__(self, "seen", seen)

    def multiply(self, x):
        self.seen.append(x.size // x.shape[-1])
        return super().multiply(x)


@pytest.mark.parametrize("shape", [(1, 1, 128), (1, 33, 128), (4, 9, 128), (2, 128)])
@pytest.mark.parametrize("mode", ["affine", "mxfp4"])
@pytest.mark.parametrize("name", ["whole", "split16", "split5", "unpacked"])
def test_every_product_gives_the_same_numbers(name, mode, shape):
    weight, x = quantised(mode), inputs(*shape)
    got = product_named(name)(weight, x)
    assert got.shape == (*shape[:-1], 96)
    assert_close(got, weight.multiply(x), atol=2e-5, why="float32, sums in another order")


@pytest.mark.parametrize(
    ("num_rows", "calls"), [(1, [1]), (16, [16]), (17, [8, 9]), (32, [16, 16]), (40, [13, 13, 14])]
)
def test_no_call_of_a_split_product_sees_more_rows_than_it_says(num_rows, calls):
    seen = []
    product_named("split16")(Counting(quantised(), seen), inputs(1, num_rows, 128))
    assert seen == calls


def splitting(seen):
    products = FastProducts(Strategies(shipped_table("cuda"), parse_forced("qmm=split4")))
    return Linear(Counting(quantised(), seen), None, products)


def test_the_exact_route_multiplies_whole_whatever_is_chosen():
    seen = []
    linear, x = splitting(seen), inputs(1, 9, 128)
    assert mx.array_equal(linear(x, "exact"), quantised().multiply(x))
    assert mx.array_equal(linear(x), quantised().multiply(x))
    assert seen == [9, 9]


def test_the_fast_route_multiplies_as_chosen():
    seen = []
    splitting(seen)(inputs(1, 9, 128), "fast")
    assert seen == [3, 3, 3]


def test_a_bias_is_added_to_what_a_split_product_gives():
    products, x = FastProducts(Strategies(shipped_table("cuda"), parse_forced("qmm=split4"))), inputs(1, 9, 128)
    linear = Linear(quantised(), mx.arange(96, dtype=mx.float32), products)
    assert_close(linear(x, "fast"), linear(x, "exact"), atol=1e-4, why="float32, other row counts per kernel call")


@pytest.mark.parametrize(("num_rows", "calls"), [(8, [8]), (32, [16, 16])])
def test_a_cuda_table_splits_where_it_says(num_rows, calls):
    seen = []
    products = FastProducts(Strategies(shipped_table("cuda")))
    products.multiply(Counting(quantised(), seen), inputs(1, num_rows, 128))
    assert seen == calls


def test_the_choice_is_looked_up_once_per_shape():
    asked = []

    class Asked(StrategyTable):
        def nearest(self, geometry, usable):
            asked.append(geometry.rows)
            return

    table = shipped_table("cuda")
    products = FastProducts(Strategies(Asked(table.device, "", table.defaults)))
    for num_rows in (2, 2, 3, 2):
        products.multiply(quantised(), inputs(1, num_rows, 128))
    assert asked == [2, 3]


def test_a_dense_matrix_has_one_product():
    x, weight = inputs(1, 40, 128), Weight(inputs(96, 128))
    products = FastProducts(Strategies(shipped_table("cuda"), parse_forced("qmm=split4")))
    assert mx.array_equal(Linear(weight, None, products)(x, "fast"), weight.multiply(x))


def test_fused_and_tied_projections_split_too():
    seen, x = [], inputs(1, 9, 128)
    products = FastProducts(Strategies(shipped_table("cuda"), parse_forced("qmm=split4")))
    fused = FusedLinear([Linear(quantised(num_rows=size), None, products) for size in (64, 32)])
    for got, part in zip(fused(x, "fast"), fused(x, "exact"), strict=True):
        assert_close(got, part, atol=2e-5, why="float32, one wider product")
    Embedding(Counting(quantised(), seen), products).project(x, "fast")
    assert seen == [3, 3, 3]
