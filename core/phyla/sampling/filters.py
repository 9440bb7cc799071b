"""Truncation of a distribution before a draw: top-p, min-p, XTC, top-k, in this order, on log-probabilities.

Every function takes (M, V) log-probabilities and gives them back with dropped ids at minus infinity.

Source:
    Order and formulas of mlx-lm's samplers (0.32). Top-p: Holtzman et al. 2020, section 3.1. Min-p: Nguyen et al.
    2024, section 3. Top-k: Fan et al. 2018, section 5.4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import mlx.core as mx

from phyla.request import SamplingParams

COLDEST = 1e-6
"""Temperatures below are greedy: their reciprocal would turn differences into infinities."""


@dataclass(frozen=True)
class Filters:
    """One way to truncate and flatten; rows that agree on it are drawn together."""

    temperature: float
    top_p: float = 0.0
    min_p: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.0
    xtc_special_ids: tuple[int, ...] = ()
    top_k: int = 0

    @classmethod
    def of(cls, params: SamplingParams) -> Filters:
        """The filters a request asked for; a greedy one has none."""
        if params.temperature < COLDEST:
            return cls(temperature=0.0)
        return cls(
            temperature=params.temperature,
            top_p=params.top_p,
            min_p=params.min_p,
            xtc_probability=params.xtc_probability,
            xtc_threshold=params.xtc_threshold,
            xtc_special_ids=params.xtc_special_ids if params.xtc_probability > 0 else (),
            top_k=params.top_k,
        )

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def uses_xtc(self) -> bool:
        return self.xtc_probability > 0

    def apply(self, logprobs: mx.array, xtc_draws: mx.array | None = None) -> mx.array:
        """Truncate, then divide by the temperature: unnormalised log-probabilities to draw from.

        Args:
            logprobs: (M, V).
            xtc_draws: (M, 1) uniform numbers; needed when `uses_xtc`.
        """
        vocab_size = logprobs.shape[-1]
        if 0 < self.top_p < 1:
            logprobs = top_p(logprobs, self.top_p)
        if self.min_p > 0:
            logprobs = min_p(logprobs, self.min_p)
        if xtc_draws is not None:
            logprobs = xtc(logprobs, xtc_draws, self.xtc_probability, self.xtc_threshold, self.xtc_special_ids)
        if 0 < self.top_k < vocab_size:
            logprobs = top_k(logprobs, self.top_k)
        return logprobs * (1.0 / self.temperature)


def top_p(logprobs: mx.array, mass: float) -> mx.array:
    """Keep the most likely ids until they hold `mass` of the probability; ties with the last one stay."""
    ascending = mx.sort(logprobs, axis=-1)
    probabilities = mx.exp(ascending.astype(mx.float32))
    above = mx.cumsum(probabilities, axis=-1, reverse=True, inclusive=False)
    total = above[..., :1] + probabilities[..., :1]
    num_dropped = (above >= mass * total).sum(axis=-1, keepdims=True)
    threshold = mx.take_along_axis(ascending, num_dropped, axis=-1)
    return mx.where(logprobs < threshold, -math.inf, logprobs)


def min_p(logprobs: mx.array, share: float) -> mx.array:
    """Drop ids less likely than `share` of the most likely one."""
    threshold = mx.max(logprobs, axis=-1, keepdims=True) + math.log(share)
    return mx.where(logprobs < threshold, -math.inf, logprobs)


def xtc(
    logprobs: mx.array, draws: mx.array, probability: float, threshold: float, special_ids: tuple[int, ...]
) -> mx.array:
    """Exclude top choices: with some probability drop all ids above the threshold but the least likely of them.

    Args:
        logprobs: (M, V).
        draws: (M, 1) uniform numbers; a row is left alone where its number is above `probability`.
        probability: how often it happens, [0, 1].
        threshold: probability above which an id counts as a top choice.
        special_ids: never dropped.
    """
    probabilities = mx.softmax(logprobs, axis=-1)
    is_top = probabilities > threshold
    least_top = mx.where(is_top, probabilities, math.inf).min(axis=-1, keepdims=True)
    dropped = probabilities > least_top
    if special_ids:
        dropped[..., mx.array(special_ids, dtype=mx.int32)] = False
    return mx.where(draws > probability, logprobs, mx.where(dropped, -math.inf, logprobs))


def top_k(logprobs: mx.array, num_kept: int) -> mx.array:
    """Keep the `num_kept` most likely ids; 0 < num_kept < V."""
    dropped = mx.argpartition(-logprobs, kth=num_kept - 1, axis=-1)[..., num_kept:]
    return mx.put_along_axis(logprobs, dropped, mx.array(-math.inf, logprobs.dtype), axis=-1)
