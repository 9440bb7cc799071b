"""A gated delta layer: projections, a short convolution over time, the delta rule, a gated norm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import mlx.core as mx
from phyla.nn.activation import fused
from phyla.nn.linear import FusedLinear, Linear
from phyla.nn.norm import RMSNorm

from phyla_qwen35.chunked_rule import CHUNKED_FROM, chunked_rule
from phyla_qwen35.config import DeltaSizes
from phyla_qwen35.delta_rule import RulePosition, compiled, kept_share, log_decay, normalised, position, recurrent_rule
from phyla_qwen35.describe import CONV, STATE

if TYPE_CHECKING:
    from phyla import StepInput
    from phyla.kv.kinds import NumReal, RecurrentCache, State
    from phyla.nn.activation import GatedActivation

MIXED, DECAY, RATE = "mixed", "decay", "rate"
"""What the recurrence takes per position: queries, keys and values before the convolution, and two numbers per value
head."""


class DeltaKernels:
    """The layer's elementwise formulas, compiled once for all layers of a model, or plain."""

    def __init__(self, is_compiled: bool) -> None:
        self.position: RulePosition = compiled(position, is_compiled)
        self.kept_share = mx.compile(kept_share, shapeless=True) if is_compiled else kept_share
        self.silu = mx.compile(_silu, shapeless=True) if is_compiled else _silu
        self.gated: GatedActivation = fused(_gated, is_compiled)


@dataclass(frozen=True)
class Recurrence:
    """Convolution and delta rule: everything in the layer that looks at other positions.

    Pure, so that a kept prefix of a window can be replayed.
    """

    sizes: DeltaSizes
    convolution: mx.array
    """(C, kernel, 1)."""

    stored_decay: mx.array
    """(Hv,), `A_log`, in its stored dtype."""

    decay_bias: mx.array
    """(Hv,), `dt_bias`."""

    kernels: DeltaKernels

    @property
    def arrays(self) -> list[mx.array]:
        return [self.convolution, self.stored_decay, self.decay_bias]

    def recurrent(self, inputs: Mapping[str, mx.array], state: State, num_real: NumReal) -> tuple[mx.array, State]:
        """Position by position: (B, L, ...) in, (B, L, Hv, Dv) out."""
        return self._run(inputs, state, num_real, is_chunked=False)

    def chunked(self, inputs: Mapping[str, mx.array], state: State, num_real: NumReal) -> tuple[mx.array, State]:
        """The same 64 positions at a time, up to rounding."""
        return self._run(inputs, state, num_real, is_chunked=True)

    def _run(
        self, inputs: Mapping[str, mx.array], state: State, num_real: NumReal, is_chunked: bool
    ) -> tuple[mx.array, State]:
        num_rows, width, _ = inputs[MIXED].shape
        if num_rows == 1 and num_real[0] < width:
            return self._cut_short(inputs, state, num_real[0], is_chunked)
        if min(num_real) == width:
            return self._fold(inputs, state, None, is_chunked)
        return self._fold(inputs, state, mx.array(list(num_real), dtype=mx.int32), is_chunked)

    def _cut_short(
        self, inputs: Mapping[str, mx.array], state: State, num_real: int, is_chunked: bool
    ) -> tuple[mx.array, State]:
        """A lone padded row: only its real positions are computed, so that a replay costs what it keeps."""
        mixed = inputs[MIXED]
        padding = mixed.shape[1] - num_real
        shape = (1, padding, self.sizes.num_value_heads, self.sizes.value_dim)
        nothing = mx.zeros(shape, dtype=mixed.dtype)
        if num_real == 0:
            return nothing, state
        real = {name: one[:, :num_real] for name, one in inputs.items()}
        outputs, folded = self._fold(real, state, None, is_chunked)
        return mx.concatenate([outputs, nothing], axis=1), folded

    def _fold(
        self, inputs: Mapping[str, mx.array], state: State, num_real: mx.array | None, is_chunked: bool
    ) -> tuple[mx.array, State]:
        """Args:
        num_real: (B,) where rows are padded, else None.
        """
        mixed, is_real = inputs[MIXED], None
        if num_real is not None:
            is_real = (mx.arange(mixed.shape[1]) < num_real[:, None])[..., None]
            # Zeros, whatever stood there: the rule multiplies padded keys by a rate of zero, and that must not be NaN.
            mixed = mx.where(is_real, mixed, 0)
        joined = mx.concatenate([self._last_inputs(mixed, state), mixed], axis=1)
        queries, keys, values = self._heads(self._convolved(joined))
        outputs, folded = self._rule(queries, keys, values, inputs, self._matrix(state, mixed), is_real, is_chunked)
        return outputs, {CONV: self._tail(joined, num_real), STATE: folded}

    def _rule(
        self,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        inputs: Mapping[str, mx.array],
        matrix: mx.array,
        is_real: mx.array | None,
        is_chunked: bool,
    ) -> tuple[mx.array, mx.array]:
        rates = mx.sigmoid(inputs[RATE])
        if is_real is not None:
            rates = mx.where(is_real, rates, 0)
        if is_chunked:
            logs = log_decay(self.stored_decay, inputs[DECAY], self.decay_bias)
            logs = logs if is_real is None else mx.where(is_real, logs, 0)
            return chunked_rule(queries, keys, values, logs, rates, matrix)
        kept = self.kernels.kept_share(self.stored_decay, inputs[DECAY], self.decay_bias)
        kept = kept if is_real is None else mx.where(is_real, kept, 1)
        return recurrent_rule(queries, keys, values, kept, rates, matrix, self.kernels.position)

    def _last_inputs(self, mixed: mx.array, state: State) -> mx.array:
        if state:
            return state[CONV]
        return mx.zeros((mixed.shape[0], self.sizes.kernel - 1, mixed.shape[-1]), dtype=mixed.dtype)

    def _matrix(self, state: State, mixed: mx.array) -> mx.array:
        if state:
            return state[STATE]
        shape = (mixed.shape[0], self.sizes.num_value_heads, self.sizes.value_dim, self.sizes.key_dim)
        return mx.zeros(shape, dtype=mx.float32)

    def _tail(self, joined: mx.array, num_real: mx.array | None) -> mx.array:
        """The inputs that the next step's convolution sees: (B, kernel - 1, C), before the activation."""
        num_kept = self.sizes.kernel - 1
        if num_real is None:
            return joined[:, -num_kept:]
        return mx.take_along_axis(joined, (num_real[:, None] + mx.arange(num_kept))[..., None], axis=1)

    def _convolved(self, joined: mx.array) -> mx.array:
        """Each channel over its own last inputs: (B, kernel - 1 + L, C) to (B, L, C)."""
        return self.kernels.silu(mx.conv1d(joined, self.convolution, groups=joined.shape[-1]))

    def _heads(self, convolved: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        """Normalised queries and keys (B, L, Hk, Dk), and values (B, L, Hv, Dv)."""
        B, L, _ = convolved.shape
        sizes = self.sizes
        queries, keys, values = mx.split(convolved, [sizes.keys_width, 2 * sizes.keys_width], axis=-1)
        queries, keys = (one.reshape(B, L, sizes.num_key_heads, sizes.key_dim) for one in (queries, keys))
        return *normalised(queries, keys), values.reshape(B, L, sizes.num_value_heads, sizes.value_dim)


class GatedDeltaLayer:
    """The mixer of a recurrent layer.

    Args:
        inputs: four parts: queries, keys and values side by side; the output's gate; the rates; the decays.
        recurrence: what looks at other positions.
        norm: per value head, before the gate.
        out: back to E.
    """

    def __init__(self, inputs: FusedLinear, recurrence: Recurrence, norm: RMSNorm, out: Linear) -> None:
        self.inputs = inputs
        self.recurrence = recurrence
        self.norm = norm
        self.out = out

    def __call__(self, hidden: mx.array, step: StepInput, cache: RecurrentCache) -> mx.array:
        """(B*L, E) in and out; `cache` moves on by this step."""
        B, L = step.num_rows, step.width
        mixed, gate, rate, decay = self.inputs(hidden, step.route)
        # The exact route computes what mlx-lm does, position by position.
        is_chunked = step.route == "fast" and L >= CHUNKED_FROM
        run = self.recurrence.chunked if is_chunked else self.recurrence.recurrent
        given = {MIXED: mixed, DECAY: decay, RATE: rate}
        by_row = {name: one.reshape(B, L, one.shape[-1]) for name, one in given.items()}
        mixed_over = cache.advance(by_row, run, step.num_real)
        gated = self.recurrence.kernels.gated(gate.reshape(mixed_over.shape), self.norm(mixed_over))
        return self.out(gated.reshape(B * L, -1), step.route)


def _silu(x: mx.array) -> mx.array:
    return x * mx.sigmoid(x)


def _gated(gate: mx.array, normed: mx.array) -> mx.array:
    """`silu(gate) * normed` in float32, rounded once."""
    return (_silu(gate.astype(mx.float32)) * normed.astype(mx.float32)).astype(normed.dtype)
