"""Rotary position embeddings and the ways checkpoints stretch them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import mlx.core as mx

from phyla.kv.rotation import Rotation
from phyla.nn.rope_form import RopeForm
from phyla.nn.rope_tables import RopeTables


class Rope:
    """Rotates the first `num_dims` of each head by position.

    Args:
        num_dims: rotated numbers per head; the rest passes.
        base: period base, where the periods are the plain ones; None when `periods` are given.
        periods: (num_dims / 2,) float32 wavelengths over 2 pi; None when `base` is given.
        position_scale: factor on positions.
        input_scale: factor on the rotated numbers.
        interleaved: pairs 2i with 2i+1 instead of i with i + num_dims/2.

    Source:
        Su et al. 2021, section 3.2.2, eq. 15.
    """

    def __init__(
        self,
        num_dims: int,
        base: float | None = None,
        periods: mx.array | None = None,
        position_scale: float = 1.0,
        input_scale: float = 1.0,
        interleaved: bool = False,
    ) -> None:
        assert (base is None) != (periods is None), "exactly one of base and periods"
        self.num_dims = num_dims
        self.base = base
        self.periods = periods
        self.position_scale = position_scale
        self.input_scale = input_scale
        self.interleaved = interleaved
        on_cpu = mx.default_device().type == mx.DeviceType.cpu
        self._tables = RopeTables(num_dims, base, periods, position_scale) if on_cpu and not interleaved else None

    @cached_property
    def rotation(self) -> Rotation | None:
        """For storage that rotates by itself; None where this turns heads in a way that it doesn't know."""
        if self.interleaved or self.input_scale != 1.0:
            return None
        periods = self.periods
        if periods is None:
            assert self.base is not None
            periods = plain_periods(self.num_dims, self.base)
        scaled: mx.array = periods / self.position_scale
        # Now: a trace would compute them again in every step.
        mx.eval(scaled)
        return Rotation(self.num_dims, scaled)

    def __call__(self, heads: mx.array, offset: int | mx.array) -> mx.array:
        """(B, heads, L, D) in and out; row b starts at position `offset` or `offset[b]`."""
        if self.input_scale != 1.0:
            heads = heads.at[..., : self.num_dims].multiply(self.input_scale)
        if self._tables is not None and heads.dtype == mx.float32:
            return self._tables.rotate(heads, offset)
        return mx.fast.rope(
            heads,
            self.num_dims,
            traditional=self.interleaved,
            base=self.base,
            scale=self.position_scale,
            offset=offset,
            freqs=self.periods,
        )


def rope_of(num_dims: int, form: RopeForm) -> Rope:
    """The rotation a config describes, for `num_dims` rotated numbers per head."""
    scaling = form.scaling
    if form.kind == "linear":
        return Rope(num_dims, base=form.base, position_scale=1 / scaling["factor"], interleaved=form.interleaved)
    if form.kind == "llama3":
        periods = llama3_periods(num_dims, form.base, scaling)
        return Rope(num_dims, periods=periods, interleaved=form.interleaved)
    if form.kind == "yarn":
        periods = yarn_periods(num_dims, form.base, scaling)
        return Rope(num_dims, periods=periods, input_scale=yarn_input_scale(scaling), interleaved=form.interleaved)
    return Rope(num_dims, base=form.base, interleaved=form.interleaved)


def plain_periods(num_dims: int, base: float) -> mx.array:
    """`base ** (2i / num_dims)`, in float32 by MLX: a table from numpy's float64 differs in the last bits."""
    exponents: mx.array = mx.arange(0, num_dims, 2, dtype=mx.float32) / num_dims
    return base**exponents


def llama3_periods(num_dims: int, base: float, scaling: Mapping[str, Any]) -> mx.array:
    """Long wavelengths stretched by `factor`, short ones kept, those between blended.

    Source:
        Grattafiori et al. 2024, section 3.4; the blend as published with the Llama 3.1 weights.
    """
    factor = scaling["factor"]
    low = scaling.get("low_freq_factor", 1.0)
    high = scaling.get("high_freq_factor", 4.0)
    context = scaling.get("original_max_position_embeddings", 8192)
    longest_kept, longest_blended = context / high, context / low

    periods = plain_periods(num_dims, base)
    wavelengths = 2 * mx.pi * periods
    is_blended = (wavelengths > longest_kept) & (wavelengths < longest_blended)
    stretched = mx.where(wavelengths > longest_blended, periods * factor, periods)
    share_kept = (context / wavelengths - low) / (high - low)
    blended = stretched / ((1 - share_kept) / factor + share_kept)
    return mx.where(is_blended, blended, stretched)


def yarn_periods(num_dims: int, base: float, scaling: Mapping[str, Any]) -> mx.array:
    """Periods between plain and `factor` times as long, by how often a dimension turns within the old context.

    Source:
        Peng et al. 2023, section 3.2, eq. 18 to 20.
    """
    context = scaling.get("original_max_position_embeddings", 4096)

    def dimension_that_turns(num_turns: float) -> float:
        return num_dims * math.log(context / (num_turns * 2 * math.pi)) / (2 * math.log(base))

    first = max(math.floor(dimension_that_turns(scaling.get("beta_fast", 32))), 0)
    last: float = min(math.ceil(dimension_that_turns(scaling.get("beta_slow", 1))), num_dims - 1)
    if first == last:
        last += 0.001
    ramp = mx.clip((mx.arange(num_dims // 2, dtype=mx.float32) - first) / (last - first), 0, 1)
    share_plain = 1.0 - ramp

    plain = plain_periods(num_dims, base)
    stretched: mx.array = scaling["factor"] * plain
    return (stretched * plain) / (stretched * share_plain + plain * (1 - share_plain))


def yarn_input_scale(scaling: Mapping[str, Any]) -> float:
    """The temperature correction as a factor on queries and keys.

    Source:
        Peng et al. 2023, section 3.3, eq. 21 and 22; `mscale` and `mscale_all_dim` as in DeepSeek-V2's config.
    """
    factor = scaling["factor"]
    return _yarn_temperature(factor, scaling.get("mscale", 1)) / _yarn_temperature(
        factor, scaling.get("mscale_all_dim", 0)
    )


def _yarn_temperature(factor: float, strength: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * strength * math.log(factor) + 1.0
