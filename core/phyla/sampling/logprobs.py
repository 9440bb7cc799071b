"""Log-probabilities of emitted tokens, captured with the draw and read when the token is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from phyla.request import TokenLogprobs


@dataclass(frozen=True)
class Capture:
    """What one token's `TokenLogprobs` are made from; unevaluated until its arrays are."""

    chosen: mx.array
    """() log-probability of the token itself."""

    top_ids: mx.array
    """(k,) the most likely ids, in no order."""

    top_values: mx.array
    """(k,) their log-probabilities."""

    num_at_least: mx.array
    """() ids at least as likely as the least likely of the k."""

    row: mx.array
    """(V,) all log-probabilities; evaluated only if a tie crosses the edge of the k."""

    def arrays(self) -> list[mx.array]:
        """What to evaluate together with the token."""
        return [self.chosen, self.top_ids, self.top_values, self.num_at_least]

    def read(self) -> TokenLogprobs:
        """On the host. Ids that were impossible aren't listed; ties go to the lower id, also at the edge."""
        ids: list[int] = self.top_ids.tolist()  # type: ignore[assignment]
        values: list[float] = self.top_values.tolist()  # type: ignore[assignment]
        chosen: float = self.chosen.tolist()  # type: ignore[assignment]
        num_top = len(ids)
        if num_top and self.num_at_least.tolist() != num_top:
            ids, values = self._everything_at_least(min(values))
        ranked = sorted(zip(ids, values, strict=True), key=lambda one: (-one[1], one[0]))[:num_top]
        return TokenLogprobs(logprob=chosen, top=tuple(one for one in ranked if one[1] > -math.inf))

    def _everything_at_least(self, least: float) -> tuple[list[int], list[float]]:
        values: list[float] = self.row.astype(mx.float32).tolist()  # type: ignore[assignment]
        ids = [token_id for token_id, value in enumerate(values) if value >= least]
        return ids, [values[token_id] for token_id in ids]


def capture(logprobs: mx.array, tokens: mx.array, num_top: Sequence[int | None]) -> list[Capture | None]:
    """Captures for the rows that want them.

    Args:
        logprobs: (M, V), after processors and constraint, before truncation and temperature.
        tokens: (M,) chosen ids.
        num_top: per row how many of the most likely ids to report; None captures nothing.
    """
    return [
        None if num is None else _capture_row(logprobs[index], tokens[index], num) for index, num in enumerate(num_top)
    ]


def _capture_row(row: mx.array, token: mx.array, num_top: int) -> Capture:
    num_top = min(num_top, row.shape[-1])
    chosen = mx.take(row, mx.maximum(token, 0)).astype(mx.float32)
    if num_top == 0:
        nothing = mx.zeros((0,))
        return Capture(chosen, nothing.astype(mx.int32), nothing, mx.array(0), row)
    ids = mx.argpartition(-row, kth=num_top - 1)[:num_top] if num_top < row.shape[-1] else mx.arange(num_top)
    values = row[ids]
    num_at_least = (row >= values.min()).sum()
    return Capture(chosen, ids, values.astype(mx.float32), num_at_least, row)
