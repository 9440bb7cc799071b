"""Grouped-query attention over a cache that knows how to attend."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import mlx.core as mx

from phyla.kv.kinds import RotatesAndStores
from phyla.kv.mask import Mask
from phyla.kv.rotation import HeadNorms, Rotation
from phyla.nn.linear import FusedLinear, Linear
from phyla.nn.norm import RMSNorm
from phyla.nn.rope import Rope

if TYPE_CHECKING:
    from phyla.kv.kinds import KeyValueCache
    from phyla.model.step import StepInput


def split_heads(x: mx.array, step: StepInput, num_heads: int) -> mx.array:
    """(..., heads*D) of B*L positions to (B, L, heads, D), which `heads_first` then turns round.

    With one position there is nothing to turn, and a decode step is mostly the number of its operations: it gets
    (B, heads, 1, D) at once.
    """
    if step.width == 1:
        return x.reshape(step.num_rows, num_heads, 1, -1)
    return x.reshape(step.num_rows, step.width, num_heads, -1)


def heads_first(heads: mx.array, step: StepInput) -> mx.array:
    """What `split_heads` gave, as (B, heads, L, D)."""
    return heads if step.width == 1 else heads.transpose(0, 2, 1, 3)


def merge_heads(x: mx.array) -> mx.array:
    """(B, heads, L, D) to (B*L, heads*D)."""
    num_rows, num_heads, width, head_dim = x.shape
    if width == 1:
        return x.reshape(num_rows, num_heads * head_dim)
    return x.transpose(0, 2, 1, 3).reshape(num_rows * width, num_heads * head_dim)


class Attention:
    """Self-attention with rotary positions.

    Args:
        qkv: three parts: queries, keys, values.
        out: back to E.
        rope: rotates queries and keys; None for a layer without positions.
        num_heads: query heads H.
        num_kv_heads: key and value heads K.
        mask: what each position may see.
        q_norm: per-head norm of the queries before they are rotated, where the model has one.
        k_norm: the same for keys.
        output_gate: the query projection also gives a gate per number of each head's output, behind that head's query.

    Source:
        Vaswani et al. 2017, section 3.2; grouped heads: Ainslie et al. 2023, section 2.2; rotary positions: Su et al.
        2021, section 3.2.2; per-head norms: Henry et al. 2020, section 2 (as root-mean-square norms);
        the gate: Qiu et al. 2025 (Gated Attention), section 2.2, position G1.
    """

    def __init__(
        self,
        qkv: FusedLinear,
        out: Linear,
        rope: Rope | None,
        num_heads: int,
        num_kv_heads: int,
        mask: Mask,
        q_norm: RMSNorm | None = None,
        k_norm: RMSNorm | None = None,
        output_gate: bool = False,
    ) -> None:
        self.qkv = qkv
        self.out = out
        self.rope = rope
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.mask = mask
        self.q_norm = q_norm
        self.k_norm = k_norm
        self.output_gate = output_gate
        self._rotation = self._whole_rotation() if mx.cuda.is_available() else None

    def __call__(self, hidden: mx.array, step: StepInput, cache: KeyValueCache) -> mx.array:
        """(B*L, E) in and out; an axis in front is dropped. This step's keys and values are appended to `cache`."""
        queries = self._stored_at_once(hidden, step, cache)
        if queries is not None:
            return self.out(merge_heads(cache.attend(queries, self.mask, step.num_real)), step.route)
        queries, keys, values = self.qkv(hidden, step.route)
        queries = split_heads(queries, step, self.num_heads)
        gates: mx.array | None = None
        if self.output_gate:
            queries, gates = mx.split(queries, 2, axis=-1)
        queries = self._positioned(queries, self.q_norm, step)
        keys = self._positioned(split_heads(keys, step, self.num_kv_heads), self.k_norm, step)
        values = heads_first(split_heads(values, step, self.num_kv_heads), step)
        cache.append(keys, values, step.num_real)
        attended = merge_heads(cache.attend(queries, self.mask, step.num_real))
        if gates is not None:
            attended = attended * mx.sigmoid(gates.reshape(attended.shape))
        return self.out(attended, step.route)

    def _stored_at_once(self, hidden: mx.array, step: StepInput, cache: KeyValueCache) -> mx.array | None:
        """Queries, rotated, where the cache takes the projection whole."""
        rotation, offsets = self._rotation, step.rope_offset
        if rotation is None or step.route == "exact" or isinstance(offsets, int):
            return None
        if not isinstance(cache, RotatesAndStores) or not cache.rotates:
            return None
        projected = self.qkv.together(hidden)
        return None if projected is None else cache.rotate_and_store(projected, rotation, offsets)

    def _positioned(self, heads: mx.array, norm: RMSNorm | None, step: StepInput) -> mx.array:
        """What `split_heads` gave, to (B, heads, L, D), normed and rotated."""
        if norm is not None:
            heads = norm(heads)
        heads = heads_first(heads, step)
        return heads if self.rope is None else self.rope(heads, step.rope_offset)

    def _whole_rotation(self) -> Rotation | None:
        """All that happens to queries and keys before they are used, where storage knows how to do it."""
        rotation = None if self.rope is None or self.output_gate else self.rope.rotation
        if rotation is None or (self.q_norm is None) != (self.k_norm is None):
            return None
        if self.q_norm is None or self.k_norm is None:
            return rotation
        if self.q_norm.eps != self.k_norm.eps:
            return None
        return replace(rotation, norms=HeadNorms(self.q_norm.weight, self.k_norm.weight, self.q_norm.eps))

    @property
    def arrays(self) -> list[mx.array]:
        norms = [norm.weight for norm in (self.q_norm, self.k_norm) if norm is not None]
        return [*self.qkv.arrays, *self.out.arrays, *norms]
