"""Ways of multiplying by a matrix, and the choice between them for each shape.

The exact route always multiplies whole, as mlx-lm does: another way has other low bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import mlx.core as mx

from phyla.backend.strategy import MatmulGeometry, QmmGeometry, Strategies, rows_per_call
from phyla.nn.form import QuantForm
from phyla.nn.product_geometry import usable_products
from phyla.nn.streamed import streamed, takes_form
from phyla.nn.weight import Weight

Product = Callable[[Weight, mx.array], mx.array]
"""`(matrix, x)`: (..., inputs) to (..., outputs)."""


def whole(weight: Weight, x: mx.array) -> mx.array:
    """One product by MLX, however many rows."""
    return weight.multiply(x)


def unpacked(weight: Weight, x: mx.array) -> mx.array:
    """Unpack the matrix, then multiply dense: for many rows, where unpacking is the smaller part."""
    return x @ weight.unpacked(x.dtype).T


def split(most_rows: int) -> Product:
    """Products of at most `most_rows` rows each, for kernels that fall off a cliff behind some number of them."""

    def multiply(weight: Weight, x: mx.array) -> mx.array:
        num_rows = x.size // x.shape[-1]
        if num_rows <= most_rows:
            return weight.multiply(x)
        # Of nearly one size, so that none is left with a row or two.
        num_calls = -(-num_rows // most_rows)
        edges = [num_rows * call // num_calls for call in range(1, num_calls)]
        parts = mx.split(x.reshape(1, num_rows, x.shape[-1]), edges, axis=1)
        products = mx.concatenate([weight.multiply(part) for part in parts], axis=1)
        return products.reshape(*x.shape[:-1], products.shape[-1])

    return multiply


PRODUCTS: Mapping[str, Product] = MappingProxyType({"whole": whole, "streamed": streamed, "unpacked": unpacked})
"""By the names of the strategies; `splitN` is made for its N. A kernel of one's own is entered here, and under its name
in `phyla.backend.strategy.names`."""


def product_named(name: str) -> Product:
    """The product that a strategy stands for."""
    most_rows = rows_per_call(name)
    return PRODUCTS[name] if most_rows is None else split(most_rows)


class FastProducts:
    """The products of the fast route, each chosen once per shape.

    Args:
        strategies: what chooses; None multiplies whole.
    """

    def __init__(self, strategies: Strategies | None) -> None:
        self._strategies = strategies
        self._by_shape: dict[tuple[int, int, int, mx.Dtype, QuantForm | None], Product] = {}

    def multiply(self, weight: Weight, x: mx.array) -> mx.array:
        """(..., inputs) to (..., outputs)."""
        return self.product(weight, x)(weight, x)

    def product(self, weight: Weight, x: mx.array) -> Product:
        """How to multiply these."""
        if self._strategies is None:
            return whole
        shape = (x.size // x.shape[-1], weight.num_rows, weight.num_columns, x.dtype, weight.form)
        product = self._by_shape.get(shape)
        if product is None:
            product = self._by_shape[shape] = product_named(self._chosen(self._strategies, weight, x))
        return product

    def _chosen(self, strategies: Strategies, weight: Weight, x: mx.array) -> str:
        sizes = (x.size // x.shape[-1], weight.num_rows, weight.num_columns)
        geometry = MatmulGeometry(*sizes) if weight.form is None else QmmGeometry(*sizes, weight.form.bits)
        names = usable_products(strategies, geometry) - {"dense"}
        if not takes_form(weight, x.dtype):
            names -= {"streamed"}
        return strategies.choose(geometry, names).name
