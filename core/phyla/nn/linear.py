"""Linear layers: one matrix, or several stored as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import mlx.core as mx

from phyla.nn.products import FastProducts, whole
from phyla.nn.streamed import gates, streamed, streamed_gated
from phyla.nn.weight import Join, Weight, stacked_rows

if TYPE_CHECKING:
    from phyla.model.step import Route


class Linear:
    """`y = W x + b`.

    Args:
        weight: (outputs, inputs), dense or quantised.
        bias: (outputs,), or None.
        products: how the weight is multiplied on the fast route; None multiplies it whole.
    """

    def __init__(self, weight: Weight, bias: mx.array | None = None, products: FastProducts | None = None) -> None:
        self.weight = weight
        self.bias = bias
        self.products = products

    def __call__(self, x: mx.array, route: Route = "exact") -> mx.array:
        """(..., inputs) to (..., outputs)."""
        if route == "fast" and self.products is not None:
            multiply = self.products.product(self.weight, x)
            if multiply is not whole:
                product = multiply(self.weight, x)
                return product if self.bias is None else product + self.bias
        if self.bias is None:
            return self.weight.multiply(x)
        if self.weight.form is None:
            # One operation with its own rounding: a product and a sum would differ from mlx-lm in the last bit.
            return mx.addmm(self.bias, x, self.weight.transposed)
        return self.weight.multiply(x) + self.bias

    @property
    def arrays(self) -> list[mx.array]:
        return self.weight.arrays if self.bias is None else [*self.weight.arrays, self.bias]

    def rows(self, start: int, stop: int) -> Linear:
        """The layer that computes only those outputs, by views of this one's arrays."""
        return Linear(self.weight.rows(start, stop), None if self.bias is None else self.bias[start:stop])


class FusedLinear:
    """Several linear layers of one input (query, key, value; gate and up), stored once.

    The fast route multiplies by the whole matrix and cuts the result. The exact route multiplies by row views, one
    after the other, which gives the bits of separate matrices. Layers whose forms differ stay apart on both routes.

    Args:
        parts: the layers. Those of an iterator go as soon as they were copied.
        join: copies them together.
    """

    def __init__(self, parts: Iterable[Linear], join: Join = mx.concatenate) -> None:
        apart = list(parts)
        self._cuts = _cuts(apart)
        self.whole = _fused(apart, join)
        self.parts = tuple(apart) if self.whole is None else _views(self.whole, self._cuts)

    def __call__(self, x: mx.array, route: Route) -> Sequence[mx.array]:
        """The outputs of each part, in order."""
        if self.whole is None or route == "exact":
            return [part(x, route) for part in self.parts]
        return list(mx.split(self.whole(x, route), self._cuts, axis=-1))

    def together(self, x: mx.array) -> mx.array | None:
        """The outputs of all parts side by side, on the fast route; None where they are stored apart."""
        return None if self.whole is None else self.whole(x, "fast")

    def gated(self, x: mx.array) -> mx.array | None:
        """`swiglu` of its two parts on the fast route, where their product can do that on the way; None elsewhere."""
        whole = self.whole
        if whole is None or whole.bias is not None or whole.products is None:
            return None
        weight = whole.weight
        are_halves = self._cuts == [weight.num_rows // 2]
        if not are_halves or not gates(weight) or whole.products.product(weight, x) is not streamed:
            return None
        return streamed_gated(weight, x)

    @property
    def arrays(self) -> list[mx.array]:
        """The stored arrays and their views, which are evaluated together so that the views share the buffers."""
        views = [array for part in self.parts for array in part.arrays]
        return views if self.whole is None else [*self.whole.arrays, *views]


def _fused(parts: list[Linear], join: Join) -> Linear | None:
    """One layer for all, which empties the list; None where they differ."""
    alike = len({(part.weight.form, part.weight.data.dtype, part.bias is None) for part in parts}) == 1
    if not alike:
        return None
    products = parts[0].products
    weights, biases = [part.weight for part in parts], [part.bias for part in parts if part.bias is not None]
    parts.clear()
    return Linear(stacked_rows(weights, join), join(biases) if biases else None, products)


def _views(whole: Linear, cuts: Sequence[int]) -> tuple[Linear, ...]:
    edges = [0, *cuts, whole.weight.num_rows]
    return tuple(whole.rows(start, stop) for start, stop in pairwise(edges))


def _cuts(parts: Sequence[Linear]) -> list[int]:
    cuts: list[int] = []
    for part in parts[:-1]:
        cuts.append(part.weight.num_rows + (cuts[-1] if cuts else 0))
    return cuts
