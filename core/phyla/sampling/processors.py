"""What changes logits before they become probabilities: bias and penalties, in a fixed order.

Source:
    Order and formulas of mlx-lm's logits processors (0.32). Repetition: Keskar et al. 2019, section 4.1.
    We differ: the history is always the whole prompt and everything emitted, also after a prefix hit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import mlx.core as mx

from phyla.request import SamplingParams


class BuiltInProcessor(Protocol):
    """A `LogitsProcessor` that can also follow tokens the host doesn't know yet."""

    def __call__(self, history: Sequence[int], logits: mx.array, drafted: mx.array | None = None, /) -> mx.array:
        """Changed (1, V) logits of one row.

        Args:
            history: the prompt and everything emitted so far.
            logits: (1, V); not modified.
            drafted: (N,) int32 ids after those, all with a logit, which are still on the device.
        """
        ...


def built_in_processors(params: SamplingParams, vocab_size: int) -> list[BuiltInProcessor]:
    """Bias, repetition, presence, frequency: those that `params` switches on, in this order."""
    processors: list[BuiltInProcessor] = []
    if params.logit_bias:
        processors.append(logit_bias(params.logit_bias, vocab_size))
    if params.repetition_penalty not in (0, 1):
        processors.append(repetition_penalty(params.repetition_penalty, params.repetition_context_size))
    if params.presence_penalty != 0:
        processors.append(presence_penalty(params.presence_penalty, params.presence_context_size))
    if params.frequency_penalty != 0:
        processors.append(frequency_penalty(params.frequency_penalty, params.frequency_context_size))
    return processors


def logit_bias(bias: Mapping[int, float], vocab_size: int) -> BuiltInProcessor:
    """Adds a number to the logits of some ids; ids outside the vocabulary have no logit to add it to."""
    known = {token_id: value for token_id, value in bias.items() if 0 <= token_id < vocab_size}
    ids = mx.array(list(known), dtype=mx.int32)
    values = mx.array(list(known.values()), dtype=mx.float32)

    def add_bias(history: Sequence[int], logits: mx.array, drafted: mx.array | None = None, /) -> mx.array:
        return logits.at[:, ids].add(values.astype(logits.dtype)) if known else logits

    return add_bias


def repetition_penalty(penalty: float, context_size: int) -> BuiltInProcessor:
    """Makes recent ids less likely: divides their positive logits and multiplies their negative ones."""

    def penalise(history: Sequence[int], logits: mx.array, drafted: mx.array | None = None, /) -> mx.array:
        recent = _distinct(history, drafted, context_size, logits)
        if recent is None:
            return logits
        ids = recent[None]
        chosen = mx.take_along_axis(logits, ids, axis=-1)
        return mx.put_along_axis(logits, ids, mx.where(chosen < 0, chosen * penalty, chosen / penalty), axis=-1)

    return penalise


def presence_penalty(penalty: float, context_size: int) -> BuiltInProcessor:
    """Subtracts the penalty once from each id that occurs in the window."""

    def penalise(history: Sequence[int], logits: mx.array, drafted: mx.array | None = None, /) -> mx.array:
        recent = _distinct(history, drafted, context_size, logits)
        if recent is None:
            return logits
        ids = recent[None]
        return mx.put_along_axis(logits, ids, mx.take_along_axis(logits, ids, axis=-1) - penalty, axis=-1)

    return penalise


def frequency_penalty(penalty: float, context_size: int) -> BuiltInProcessor:
    """Subtracts the penalty from an id as often as it occurs in the window."""

    def penalise(history: Sequence[int], logits: mx.array, drafted: mx.array | None = None, /) -> mx.array:
        recent = _recent(history, drafted, context_size, logits)
        if recent is None:
            return logits
        # One scatter with duplicates, not count * penalty: repeated subtraction rounds differently.
        return logits.at[:, recent].subtract(penalty)

    return penalise


def _distinct(history: Sequence[int], drafted: mx.array | None, context_size: int, logits: mx.array) -> mx.array | None:
    """As `_recent`, each id of the history once; a draft may repeat one, which is then written twice, alike."""
    known = list(dict.fromkeys(_known(history, drafted, context_size, logits)))
    return _joined(known, drafted, context_size)


def _recent(history: Sequence[int], drafted: mx.array | None, context_size: int, logits: mx.array) -> mx.array | None:
    """(N,) int32, the last `context_size` ids, those that have a logit; 0 looks at all of them. None for no ids."""
    return _joined(_known(history, drafted, context_size, logits), drafted, context_size)


def _known(history: Sequence[int], drafted: mx.array | None, context_size: int, logits: mx.array) -> list[int]:
    """What the window holds of the history: drafts push ids out of it."""
    num_drafted = 0 if drafted is None else drafted.size
    start = max(len(history) + num_drafted - context_size, 0) if context_size else 0
    vocab_size = logits.shape[-1]
    return [token_id for token_id in history[start:] if 0 <= token_id < vocab_size]


def _joined(known: list[int], drafted: mx.array | None, context_size: int) -> mx.array | None:
    ids = mx.array(known, dtype=mx.int32) if known else None
    if drafted is None:
        return ids
    recent = drafted[-context_size:]
    return recent if ids is None else mx.concatenate([ids, recent])
