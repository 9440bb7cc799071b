"""How many tokens to draft: as many as pay for their check, which may be none."""

from __future__ import annotations

PRIOR_ACCEPTED = 3.0
PRIOR_REJECTED = 2.0
ROUND_DECAY = 0.85
"""What a round leaves of the evidence before it."""

IDLE_DECAY = 0.98
"""What a round without drafts leaves of the distance to the prior: about forty rounds to the next attempt."""

MARGIN = 0.03
"""Drafting must promise this much over a plain step, so that noise in the clock doesn't start it."""

COST_DECAY = 0.8
ASSUMED_COST_PER_TOKEN = 0.02
"""Of a plain step, for each further position, until a width was measured: low, so that it is tried."""

PLAIN_AFTER_CALLS, PLAIN_UNTIL_CALLS = 4, 20
"""Of so many rows: the calls between which plain steps are asked for if none was measured. Drafts that are all accepted
and don't pay would else never be compared with anything."""


class StepCosts:
    """Seconds per target call by rows and width, as measured; one for all rows of an engine."""

    def __init__(self) -> None:
        self._seconds: dict[int, dict[int, float]] = {}
        self._num_calls: dict[int, int] = {}

    def record(self, num_rows: int, width: int, seconds: float) -> None:
        """One call took so long."""
        self._num_calls[num_rows] = self._num_calls.get(num_rows, 0) + 1
        known = self._seconds.setdefault(num_rows, {})
        before = known.get(width)
        known[width] = seconds if before is None else COST_DECAY * before + (1 - COST_DECAY) * seconds

    def wants_plain(self, num_rows: int) -> bool:
        """Whether the next call of so many rows should be a plain step, for others to be compared with."""
        is_due = PLAIN_AFTER_CALLS <= self._num_calls.get(num_rows, 0) < PLAIN_UNTIL_CALLS
        return is_due and 1 not in self._seconds[num_rows]

    def relative(self, num_rows: int, width: int) -> float:
        """Cost of a call of that width, in plain steps; interpolated between the widths that were measured."""
        known = self._seconds.get(num_rows, {})
        if 1 not in known:
            return 1.0 + ASSUMED_COST_PER_TOKEN * (width - 1)
        if width in known:
            return known[width] / known[1]
        below = max(one for one in known if one < width)
        above = min((one for one in known if one > width), default=None)
        if above is None:
            return known[below] / known[1] + ASSUMED_COST_PER_TOKEN * (width - below)
        share = (width - below) / (above - below)
        return (known[below] + share * (known[above] - known[below])) / known[1]


class DraftLength:
    """Chooses one row's draft length from how its drafts have fared.

    Source:
        Expected tokens of a round with n drafts at acceptance a: Leviathan et al. 2023, equation 1.
    """

    def __init__(self, most: int, costs: StepCosts | None = None) -> None:
        """`costs` None always drafts `most`."""
        self._most = most
        self._costs = costs
        self._accepted = PRIOR_ACCEPTED
        self._rejected = PRIOR_REJECTED

    @property
    def acceptance(self) -> float:
        """Estimated probability that a draft is accepted, given that those before it were."""
        return self._accepted / (self._accepted + self._rejected)

    def wanted(self, num_rows: int = 1) -> int:
        """Drafts that promise the most tokens per cost; 0 is a plain step."""
        if self._costs is None:
            return self._most
        if self._costs.wants_plain(num_rows):
            return 0
        best, best_rate = 0, 1.0 + MARGIN
        expected, reached = 1.0, 1.0
        for num_drafts in range(1, self._most + 1):
            reached *= self.acceptance
            expected += reached
            rate = expected / self._costs.relative(num_rows, num_drafts + 1)
            if rate > best_rate:
                best, best_rate = num_drafts, rate
        return best

    def record(self, num_drafted: int, num_accepted: int) -> None:
        """A round ended. Drafts after the first rejected one say nothing."""
        if num_drafted == 0:
            self._accepted = PRIOR_ACCEPTED + IDLE_DECAY * (self._accepted - PRIOR_ACCEPTED)
            self._rejected = PRIOR_REJECTED + IDLE_DECAY * (self._rejected - PRIOR_REJECTED)
            return
        self._accepted = ROUND_DECAY * self._accepted + num_accepted
        self._rejected = ROUND_DECAY * self._rejected + (num_accepted < num_drafted)
