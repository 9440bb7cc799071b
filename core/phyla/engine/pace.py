"""How fast this model runs here, learned from what it did: decides how much fits into a piece of prefill."""

from __future__ import annotations

from dataclasses import dataclass

_WEIGHT_OF_NEWEST = 0.3
"""Of the exponential average: a few pieces are enough to follow a growing context, one odd piece isn't."""

_WEIGHT_OF_A_SLOW_STEP = 0.1


@dataclass
class Pace:
    """Measured costs; None until something was measured."""

    seconds_per_token_layer: float | None = None
    """Of prefill: one token through one layer."""

    seconds_per_step: float | None = None
    """Of the running rows' decode step."""

    def prefilled(self, num_tokens: int, num_layers: int, seconds: float) -> None:
        """A piece of prefill took `seconds`."""
        measured = seconds / (num_tokens * num_layers)
        self.seconds_per_token_layer = _averaged(self.seconds_per_token_layer, measured)

    def decoded(self, seconds: float) -> None:
        """A decode step took `seconds`.

        The average falls at once and rises slowly: one step that was held up from outside mustn't let the next pieces
        of prefill grow to match.
        """
        known = self.seconds_per_step
        if known is None or seconds <= known:
            self.seconds_per_step = _averaged(known, seconds)
        else:
            self.seconds_per_step = known + _WEIGHT_OF_A_SLOW_STEP * (min(seconds, 2 * known) - known)

    def budget_seconds(self, step_seconds: float, has_running: bool) -> float:
        """What one piece of prefill may take: twice the running rows' step, and never less than `step_seconds`."""
        if not has_running or self.seconds_per_step is None:
            return step_seconds
        return max(step_seconds, 2 * self.seconds_per_step)

    def tokens_within(self, budget_seconds: float) -> int | None:
        """Tokens that go through one layer in that time; None if nothing was measured yet."""
        if self.seconds_per_token_layer is None:
            return None
        return _quotient(budget_seconds, self.seconds_per_token_layer)

    def layers_within(self, budget_seconds: float, num_tokens: int) -> int:
        """Layers that a chunk gets through in that time, at least one; one if nothing was measured yet."""
        if self.seconds_per_token_layer is None:
            return 1
        return max(1, _quotient(budget_seconds, self.seconds_per_token_layer * num_tokens))


def _averaged(average: float | None, measured: float) -> float:
    return measured if average is None else average + _WEIGHT_OF_NEWEST * (measured - average)


_MANY = 1 << 30


def _quotient(budget: float, cost: float) -> int:
    return _MANY if cost <= 0 else min(_MANY, int(budget / cost))
