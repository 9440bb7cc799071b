"""Perplexity and KL divergence of ways to store keys and values, against plain storage, over one text.

The text is cut into windows; each is read in chunks that attend to what is stored, so that every prediction but a
window's first is made from encoded keys and values. All schemes read a chunk before any reads the next: nothing but
running sums is kept.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from phyla.errors import UsageError
from phyla.kv.group import LoopGroup
from phyla.kv.row_state import RowState
from phyla.model.step import StepInput

if TYPE_CHECKING:
    from phyla.cli.bench.kv import QualityOptions
    from phyla.selection.parts import Parts

PLAIN = "plain"
COUNTED_DTYPE = "bfloat16"
"""Bytes are counted beside it whatever the device computes in: it is what sessions are stored in where it matters."""


@dataclass
class Sums:
    """Of one scheme, over all predictions so far."""

    bytes_per_token: float
    surprise: float = 0.0
    """Negative log-likelihood of the text, in nats."""

    divergence: float = 0.0
    """KL from plain storage's predictions, in nats."""

    num_same: int = 0
    """Predictions whose likeliest token is plain storage's."""


class QualityReader:
    """Reads a text with every scheme.

    Args:
        plain: the model, stored plain.
        compared: the same model by what each scheme is called.
        text: what is predicted.
        options: how much of it, and how.

    Raises:
        UsageError: the text is shorter than two tokens, or a window longer than the model's context.
    """

    def __init__(self, plain: Parts, compared: Mapping[str, Parts], text: str, options: QualityOptions) -> None:
        self._parts = {PLAIN: plain, **compared}
        self._options = options
        self._text = text
        self._ids = plain.checkpoint.tokenizer().encode(text)[: options.num_tokens]
        self._num_predicted = 0
        limit = plain.plan.facts.context_limit
        if len(self._ids) < 2:
            raise UsageError("The text has fewer than two tokens: there is nothing to predict.")
        if options.window_tokens > limit:
            raise UsageError(f"--window {options.window_tokens}: this model's context has {limit} tokens.")
        self._sums = {name: Sums(_bytes_per_token(parts)) for name, parts in self._parts.items()}
        self._binding = plain.bind()

    def measure(self) -> dict[str, Any]:
        """Read it all.

        Returns:
            JSON values: the model, what was read, and for each scheme its bytes per token, perplexity, mean KL and
            share of unchanged first choices.
        """
        window = self._options.window_tokens
        for start in range(0, len(self._ids), window):
            self._read_window(self._ids[start : start + window])
            self._options.progress(min(start + window, len(self._ids)), len(self._ids))
        return self._result()

    def _read_window(self, ids: Sequence[int]) -> None:
        layout = self._binding.facts.layout
        groups = {name: LoopGroup(layout) for name in self._parts}
        for name, parts in self._parts.items():
            groups[name].seat(RowState.fresh(layout, parts.new_state))
        # One token first: a row's first step is computed on plain keys and values.
        edges = sorted({0, 1, *range(self._options.chunk_tokens, len(ids), self._options.chunk_tokens), len(ids)})
        for start, end in pairwise(edges):
            self._read_chunk(groups, ids, start, end)

    def _read_chunk(self, groups: Mapping[str, LoopGroup], ids: Sequence[int], start: int, end: int) -> None:
        following = ids[start + 1 : end + 1]
        if not following:
            return
        plain = self._log_probabilities(groups[PLAIN], ids[start:end], start)[: len(following)]
        rows, targets = mx.arange(len(following)), mx.array(list(following), dtype=mx.int32)
        for name, group in groups.items():
            got = plain
            if name != PLAIN:
                got = self._log_probabilities(group, ids[start:end], start)[: len(following)]
            sums = self._sums[name]
            sums.surprise -= float(got[rows, targets].sum())
            sums.divergence += float((mx.exp(plain) * (plain - got)).sum())
            sums.num_same += int((mx.argmax(got, axis=-1) == mx.argmax(plain, axis=-1)).sum())
        self._num_predicted += len(following)

    def _log_probabilities(self, group: LoopGroup, ids: Sequence[int], start: int) -> mx.array:
        """(L, V) in float32, after each of the ids."""
        step = StepInput(
            ids=mx.array([list(ids)], dtype=mx.int32),
            num_real=(len(ids),),
            offsets=(start,),
            wanted=mx.arange(len(ids), dtype=mx.int32),
        )
        states = group.states()
        logits = self._binding.head(self._binding.forward(step, states).hidden)[0].astype(mx.float32)
        normalised = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        mx.eval(normalised, *(array for state in states for array in state.evaluate()))
        return normalised

    def _result(self) -> dict[str, Any]:
        plan = self._parts[PLAIN].plan
        return {
            "model": plan.model_id,
            "dtype": plan.dtype,
            "identity": plan.identity.digest(),
            "text_sha256": hashlib.sha256(self._text.encode()).hexdigest(),
            "num_tokens": len(self._ids),
            "num_predicted": self._num_predicted,
            "window_tokens": self._options.window_tokens,
            "chunk_tokens": self._options.chunk_tokens,
            "schemes": {name: self._summary(name) for name in self._parts},
        }

    def _summary(self, name: str) -> dict[str, float]:
        sums, plain, count = self._sums[name], self._sums[PLAIN], self._num_predicted
        # Not by dividing exponentials: two perplexities that overflow still have a ratio.
        change = math.expm1((sums.surprise - plain.surprise) / count)
        return {
            "bytes_per_token": sums.bytes_per_token,
            "times_smaller": round(plain.bytes_per_token / sums.bytes_per_token, 3),
            "perplexity": round(math.exp(sums.surprise / count), 4),
            "perplexity_change_percent": round(change * 100, 3),
            "mean_kl_nats": round(sums.divergence / count, 6),
            "same_choice_percent": round(sums.num_same / count * 100, 2),
        }


def _bytes_per_token(parts: Parts) -> float:
    layers = zip(parts.plan.facts.layout, parts.schemes, strict=True)
    return sum(one.value.bytes_per_token(layer, COUNTED_DTYPE) for layer, one in layers if layer.owns_state)
