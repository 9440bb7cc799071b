"""Full attention whose output is gated, number by number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import mlx.core as mx
from phyla.kv import Causal
from phyla.nn.attention import heads_first, merge_heads, split_heads
from phyla.nn.linear import FusedLinear, Linear
from phyla.nn.norm import RMSNorm
from phyla.nn.rope import Rope

from phyla_qwen35.positions import AxisRope

if TYPE_CHECKING:
    from phyla import StepInput
    from phyla.kv.kinds import KeyValueCache


@dataclass(frozen=True)
class GatedAttention:
    """The mixer of a full layer.

    Source:
        Vaswani et al. 2017, section 3.2; the gate: Qiu et al. 2025 (Gated Attention), section 2.2, position G1.
    """

    qkv: FusedLinear
    """Three parts: queries with their gates head by head, keys, values."""

    out: Linear
    q_norm: RMSNorm
    k_norm: RMSNorm
    rope: Rope
    """For positions that are the same on every axis."""

    axis_rope: AxisRope
    """For positions that a step brings itself."""

    num_heads: int
    num_kv_heads: int

    def __call__(self, hidden: mx.array, step: StepInput, cache: KeyValueCache) -> mx.array:
        """(B*L, E) in and out; this step's keys and values are appended to `cache`."""
        queries, keys, values = self.qkv(hidden, step.route)
        queries, gates = mx.split(split_heads(queries, step, self.num_heads), 2, axis=-1)
        queries = self._positioned(self.q_norm(queries), step)
        keys = self._positioned(self.k_norm(split_heads(keys, step, self.num_kv_heads)), step)
        values = heads_first(split_heads(values, step, self.num_kv_heads), step)
        cache.append(keys, values, step.num_real)
        attended = merge_heads(cache.attend(queries, Causal(), step.num_real))
        return self.out(attended * mx.sigmoid(gates.reshape(attended.shape)), step.route)

    def _positioned(self, heads: mx.array, step: StepInput) -> mx.array:
        """What `split_heads` gave, to (B, heads, L, D), rotated."""
        heads = heads_first(heads, step)
        if step.positions is not None:
            return self.axis_rope(heads, step.positions)
        return self.rope(heads, step.rope_offset)
