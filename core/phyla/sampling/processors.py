"""What changes logits before they become probabilities: bias and penalties, in a fixed order.

Source:
    Order and formulas of mlx-lm's logits processors (0.32). Repetition: Keskar et al. 2019, section 4.1.
    We differ: the history is always the whole prompt and everything emitted, also after a prefix hit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import mlx.core as mx

from phyla.request import SamplingParams
from phyla.sampling.declaration import LogitsProcessor


def built_in_processors(params: SamplingParams, vocab_size: int) -> list[LogitsProcessor]:
    """Bias, repetition, presence, frequency: those that `params` switches on, in this order."""
    processors: list[LogitsProcessor] = []
    if params.logit_bias:
        processors.append(logit_bias(params.logit_bias, vocab_size))
    if params.repetition_penalty not in (0, 1):
        processors.append(repetition_penalty(params.repetition_penalty, params.repetition_context_size))
    if params.presence_penalty != 0:
        processors.append(presence_penalty(params.presence_penalty, params.presence_context_size))
    if params.frequency_penalty != 0:
        processors.append(frequency_penalty(params.frequency_penalty, params.frequency_context_size))
    return processors


def logit_bias(bias: Mapping[int, float], vocab_size: int) -> LogitsProcessor:
    """Adds a number to the logits of some ids; ids outside the vocabulary have no logit to add it to."""
    known = {token_id: value for token_id, value in bias.items() if 0 <= token_id < vocab_size}
    ids = mx.array(list(known), dtype=mx.int32)
    values = mx.array(list(known.values()), dtype=mx.float32)

    def add_bias(history: Sequence[int], logits: mx.array) -> mx.array:
        return logits.at[:, ids].add(values.astype(logits.dtype)) if known else logits

    return add_bias


def repetition_penalty(penalty: float, context_size: int) -> LogitsProcessor:
    """Makes recent ids less likely: divides their positive logits and multiplies their negative ones."""

    def penalise(history: Sequence[int], logits: mx.array) -> mx.array:
        recent = _distinct(_window(history, context_size, logits))
        if not recent:
            return logits
        ids = mx.array(recent, dtype=mx.int32)[None]
        chosen = mx.take_along_axis(logits, ids, axis=-1)
        return mx.put_along_axis(logits, ids, mx.where(chosen < 0, chosen * penalty, chosen / penalty), axis=-1)

    return penalise


def presence_penalty(penalty: float, context_size: int) -> LogitsProcessor:
    """Subtracts the penalty once from each id that occurs in the window."""

    def penalise(history: Sequence[int], logits: mx.array) -> mx.array:
        recent = _distinct(_window(history, context_size, logits))
        if not recent:
            return logits
        ids = mx.array(recent, dtype=mx.int32)[None]
        return mx.put_along_axis(logits, ids, mx.take_along_axis(logits, ids, axis=-1) - penalty, axis=-1)

    return penalise


def frequency_penalty(penalty: float, context_size: int) -> LogitsProcessor:
    """Subtracts the penalty from an id as often as it occurs in the window."""

    def penalise(history: Sequence[int], logits: mx.array) -> mx.array:
        recent = _window(history, context_size, logits)
        if not recent:
            return logits
        # One scatter with duplicates, not count * penalty: repeated subtraction rounds differently.
        return logits.at[:, mx.array(recent, dtype=mx.int32)].subtract(penalty)

    return penalise


def _window(history: Sequence[int], context_size: int, logits: mx.array) -> list[int]:
    """The last `context_size` ids that have a logit; 0 looks at all of them."""
    vocab_size = logits.shape[-1]
    return [token_id for token_id in history[-context_size:] if 0 <= token_id < vocab_size]


def _distinct(ids: list[int]) -> list[int]:
    return list(dict.fromkeys(ids))
