"""Linear layers of which every token uses its own few."""

from __future__ import annotations

import mlx.core as mx

from phyla.errors import UnsupportedModel
from phyla.nn.activation import GatedActivation
from phyla.nn.weight import Weight

SORT_FROM = 64
"""Choices from which tokens are put in the order of their experts, as in mlx-lm: each expert is then read once."""


class ExpertLinear:
    """One matrix per expert.

    Args:
        weight: the matrices of all experts below each other: (experts * outputs, inputs), dense or quantised.
        num_experts: how many there are.

    Raises:
        UnsupportedModel: MLX has no product of such matrices on this device.
    """

    def __init__(self, weight: Weight, num_experts: int) -> None:
        assert weight.num_rows % num_experts == 0, "experts of one layer are alike"
        self.form = weight.form
        self._data = _split(weight.data, num_experts)
        if self.form is None:
            _check_product(self._data.dtype)
        self._scales = None if weight.scales is None else _split(weight.scales, num_experts)
        self._biases = None if weight.biases is None else _split(weight.biases, num_experts)

    @classmethod
    def of_matrices(cls, matrices: mx.array) -> ExpertLinear:
        """From dense matrices, (experts, outputs, inputs), which may be a view."""
        _check_product(matrices.dtype)
        made = cls.__new__(cls)
        made.form, made._data, made._scales, made._biases = None, matrices, None, None
        return made

    def __call__(self, x: mx.array, chosen: mx.array, is_sorted: bool = False) -> mx.array:
        """Multiply by the chosen experts.

        Args:
            x: (..., 1, 1, inputs), or (choices, 1, inputs) when sorted.
            chosen: expert of each choice: (..., k), or (choices,) when sorted.
            is_sorted: whether `chosen` never falls.

        Returns:
            (..., k, 1, outputs), or (choices, 1, outputs).
        """
        if self.form is None:
            return mx.gather_mm(x, self._data.swapaxes(-1, -2), rhs_indices=chosen, sorted_indices=is_sorted)
        assert self._scales is not None
        return mx.gather_qmm(
            x,
            self._data,
            self._scales,
            self._biases,
            rhs_indices=chosen,
            transpose=True,
            group_size=self.form.group_size,
            bits=self.form.bits,
            mode=self.form.mode,
            sorted_indices=is_sorted,
        )

    @property
    def arrays(self) -> list[mx.array]:
        return [array for array in (self._data, self._scales, self._biases) if array is not None]


class GatedExperts:
    """`down(activation(gate(x), up(x)))` by each chosen expert.

    Args:
        gate: E to the experts' inner size.
        up: the same.
        down: back to E.
        activation: applied to gate and up together.
    """

    def __init__(self, gate: ExpertLinear, up: ExpertLinear, down: ExpertLinear, activation: GatedActivation) -> None:
        self.gate = gate
        self.up = up
        self.down = down
        self.activation = activation

    def __call__(self, x: mx.array, chosen: mx.array) -> mx.array:
        """(..., E) and (..., k) to (..., k, E)."""
        if chosen.size < SORT_FROM:
            return self._by_choice(x[..., None, None, :], chosen, is_sorted=False).squeeze(-2)
        num_choices = chosen.shape[-1]
        flat = chosen.reshape(-1)
        order = mx.argsort(flat)
        by_expert = x.reshape(-1, 1, x.shape[-1])[order // num_choices]
        outputs = self._by_choice(by_expert, flat[order], is_sorted=True)
        return outputs[mx.argsort(order)].reshape(*chosen.shape, x.shape[-1])

    def _by_choice(self, x: mx.array, chosen: mx.array, is_sorted: bool) -> mx.array:
        up = self.up(x, chosen, is_sorted)
        gate = self.gate(x, chosen, is_sorted)
        return self.down(self.activation(gate, up), chosen, is_sorted)

    @property
    def arrays(self) -> list[mx.array]:
        return [*self.gate.arrays, *self.up.arrays, *self.down.arrays]


def _check_product(dtype: mx.Dtype) -> None:
    """Found out here and not in the middle of a request."""
    if dtype != mx.float32 and mx.default_device().type == mx.DeviceType.cpu:
        raise UnsupportedModel(
            "MLX multiplies experts in full precision on a CPU in float32 only. Use --dtype float32, or a checkpoint "
            "whose experts are quantised."
        )


def _split(stacked: mx.array, num_experts: int) -> mx.array:
    return stacked.reshape(num_experts, -1, stacked.shape[-1])
