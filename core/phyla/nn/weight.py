"""One stored matrix, dense or quantised, and what can be done with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import mlx.core as mx

from phyla.nn.form import QuantForm
from phyla.nn.unpack import dequantised


@dataclass(frozen=True)
class Weight:
    """A matrix of `num_rows` outputs by `num_columns` inputs."""

    data: mx.array
    """(rows, columns), or (rows, columns * bits / 32) uint32 when quantised."""

    scales: mx.array | None = None
    """(rows, columns / group_size) when quantised."""

    biases: mx.array | None = None
    """As `scales`, in affine form: what a group's zero code stands for."""

    form: QuantForm | None = None

    @cached_property
    def transposed(self) -> mx.array:
        """(columns, rows), dense: a view that is made once, where one per product would be a node of every step."""
        return self.data.T

    @property
    def num_rows(self) -> int:
        return self.data.shape[0]

    @property
    def num_columns(self) -> int:
        columns = self.data.shape[1]
        return columns if self.form is None else columns * 32 // self.form.bits

    @property
    def arrays(self) -> list[mx.array]:
        """Everything it is stored in, for evaluation and byte counts."""
        return [array for array in (self.data, self.scales, self.biases) if array is not None]

    def multiply(self, x: mx.array) -> mx.array:
        """(..., columns) to (..., rows)."""
        if self.form is None:
            return x @ self.transposed
        assert self.scales is not None
        return mx.quantized_matmul(
            x,
            self.data,
            scales=self.scales,
            biases=self.biases,
            transpose=True,
            group_size=self.form.group_size,
            bits=self.form.bits,
            mode=self.form.mode,
        )

    def gather(self, ids: mx.array) -> mx.array:
        """Rows by index, dequantised: (...,) int32 to (..., columns)."""
        if self.form is None:
            return self.data[ids]
        assert self.scales is not None
        return mx.dequantize(
            self.data[ids],
            scales=self.scales[ids],
            biases=None if self.biases is None else self.biases[ids],
            group_size=self.form.group_size,
            bits=self.form.bits,
            mode=self.form.mode,
        )

    def rows(self, start: int, stop: int) -> Weight:
        """A view of some rows: no copy once both are evaluated, and the same bits as a matrix of its own."""
        return Weight(
            self.data[start:stop],
            None if self.scales is None else self.scales[start:stop],
            None if self.biases is None else self.biases[start:stop],
            self.form,
        )

    def unpacked(self, dtype: mx.Dtype) -> mx.array:
        """(rows, columns) in `dtype`, by MLX's own kernel; part of the graph it is used in."""
        assert self.form is not None, "a dense matrix isn't packed"
        assert self.scales is not None
        unpacked = mx.dequantize(
            self.data,
            scales=self.scales,
            biases=self.biases,
            group_size=self.form.group_size,
            bits=self.form.bits,
            mode=self.form.mode,
        )
        return unpacked.astype(dtype)

    def dense(self, dtype: mx.Dtype) -> Weight:
        """The same matrix unpacked to `dtype`; itself when it already is."""
        if self.form is None:
            return self if self.data.dtype == dtype else Weight(self.data.astype(dtype))
        assert self.scales is not None
        return Weight(dequantised(self.data, self.scales, self.biases, self.form, dtype))


Join = Callable[[list[mx.array]], mx.array]
"""Arrays below each other; may empty the list, so that each can go as soon as it was copied."""


def stacked_rows(weights: list[Weight], join: Join = mx.concatenate) -> Weight:
    """One matrix with the rows of all of them, in order. They share one form and one number of columns.

    Empties the list: nothing here keeps the parts beside the whole.
    """
    form = weights[0].form
    assert all(weight.form == form for weight in weights), "matrices of different forms can't be fused"
    data = [weight.data for weight in weights]
    scales = [weight.scales for weight in weights if weight.scales is not None]
    biases = [weight.biases for weight in weights if weight.biases is not None]
    weights.clear()
    return Weight(join(data), join(scales) if scales else None, join(biases) if biases else None, form)
