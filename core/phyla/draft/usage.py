"""What `usage.speculation` reports of one request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


class Round(NamedTuple):
    """One target call of a row, and what it brought."""

    num_emitted: int
    num_drafted: int = 0
    num_accepted: int = 0
    num_asserted: int = 0
    """Of what was emitted, the first."""

    source: str | None = None
    """Who proposed, where that wasn't the method."""

    def cut(self, num_tokens: int) -> Round:
        """As if the row had ended with its first `num_tokens`: drafts after them aren't accepted ones."""
        return self._replace(
            num_emitted=min(self.num_emitted, num_tokens),
            num_accepted=min(self.num_accepted, num_tokens),
            num_asserted=min(self.num_asserted, num_tokens),
        )


class SpeculationUsage:
    """Counts of one row's rounds, up to a stop string. A round without drafts is a plain step and counts like one.

    Identities: drafted = accepted + rejected; emitted = accepted + asserted + target calls, less one for each accepted
    end of sequence and each round that ended on a draft; the histogram sums to the rounds.
    """

    def __init__(self, method: str) -> None:
        """For a row of this draft method, or of whatever else proposes for it."""
        self.method = method
        self.reason: str | None = None
        """Why the method ran cold or not at all, where it did."""

        self.num_drafted = 0
        self.num_accepted = 0
        self.num_emitted = 0
        self._by_source: dict[str, _Counts] = {}
        self._accepted_lengths: list[int] = []
        self._drafted_by_position: list[int] = []
        self._accepted_by_position: list[int] = []

    @property
    def num_rounds(self) -> int:
        return sum(self._accepted_lengths)

    @property
    def has_drafted(self) -> bool:
        return self.num_drafted > 0

    def record(self, found: Round) -> None:
        """One target call of this row."""
        if found.source is not None:
            self._by_source.setdefault(found.source, _Counts()).add(found.num_drafted, found.num_accepted)
        self.num_drafted += found.num_drafted
        self.num_accepted += found.num_accepted
        self.num_emitted += found.num_emitted
        _count(self._accepted_lengths, found.num_accepted)
        for position in range(found.num_drafted):
            _count(self._drafted_by_position, position)
        for position in range(found.num_accepted):
            _count(self._accepted_by_position, position)

    def report(self) -> dict[str, Any]:
        """JSON values; the keys that clients know."""
        report: dict[str, Any] = {
            "method": self.method,
            "drafted": self.num_drafted,
            "accepted": self.num_accepted,
            "rejected": self.num_drafted - self.num_accepted,
            "targetCalls": self.num_rounds,
            "rounds": self.num_rounds,
            "acceptanceLengths": list(self._accepted_lengths),
            "tokensPerForward": self.num_emitted / self.num_rounds if self.num_rounds else 0.0,
            "forwardsSaved": max(self.num_emitted - self.num_rounds, 0),
            "draftedByPos": list(self._drafted_by_position),
            "acceptedByPos": list(self._accepted_by_position),
        }
        if self._by_source:
            report["bySource"] = {source: counts.report() for source, counts in self._by_source.items()}
        if self.reason is not None:
            report["reason"] = self.reason
        return report


@dataclass
class _Counts:
    num_drafted: int = 0
    num_accepted: int = 0

    def add(self, num_drafted: int, num_accepted: int) -> None:
        self.num_drafted += num_drafted
        self.num_accepted += num_accepted

    def report(self) -> dict[str, int]:
        return {"drafted": self.num_drafted, "accepted": self.num_accepted}


def _count(counts: list[int], index: int) -> None:
    counts.extend([0] * (index + 1 - len(counts)))
    counts[index] += 1
