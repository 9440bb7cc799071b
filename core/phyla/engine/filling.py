"""Fill sources inside the engine: what each row has of them, and what became of their spans."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phyla.draft.fill import FillSource
    from phyla.draft.span import Observed, Span, SpanSource
    from phyla.draft.usage import Round
    from phyla.request import Request

FILL = "fill"
"""What `usage` and `/stats` call a row for which nothing but fills proposes."""

_log = logging.getLogger(__name__)


@dataclass
class _Opened:
    fill: FillSource
    source: SpanSource


@dataclass
class RowFills:
    """One row's sources, those that assert in front. One that fails is dropped for the row; its tokens go on."""

    opened: list[_Opened]
    refused: tuple[str, ...] = ()
    """Names of those that this request can't have."""

    num_proposals: int = 0
    num_verified: int = 0
    num_asserted: int = 0
    failed: list[str] = field(default_factory=list)

    def propose(self, history: Sequence[int], room: int) -> tuple[str, Span] | None:
        """The first source with something to say, and its span."""
        for one in list(self.opened):
            try:
                span = one.source.propose(history, room)
            except Exception:
                self._drop(one, "proposing")
                continue
            if span is not None and span.tokens:
                self.num_proposals += 1
                # Only a source that says so may assert.
                return one.fill.name, span if one.fill.asserted else replace(span, kind="verified")
        return None

    def record(self, found: Round) -> None:
        """What became of a span of theirs."""
        self.num_verified += found.num_accepted
        self.num_asserted += found.num_asserted

    def observe(self, step: Observed, winner: str | None) -> None:
        """The row computed some tokens; `winner` proposed them."""
        others = replace(step, num_drafted=0, num_accepted=0)
        for one in list(self.opened):
            try:
                one.source.observe(step if one.fill.name == winner else others)
            except Exception:
                self._drop(one, "observing")

    def report(self) -> dict[str, Any]:
        """JSON values, for `usage.fill`."""
        report: dict[str, Any] = {
            "proposals": self.num_proposals,
            "verified": self.num_verified,
            "asserted": self.num_asserted,
        }
        if self.refused:
            report["refused"] = list(self.refused)
        if self.failed:
            report["failed"] = list(self.failed)
        return report

    def _drop(self, one: _Opened, doing: str) -> None:
        _log.exception("Fill source '%s' failed while %s.", one.fill.name, doing)
        self.opened.remove(one)
        self.failed.append(one.fill.name)


def open_fills(fills: Iterable[FillSource], request: Request) -> RowFills | None:
    """A row's own, or None if no source has anything to offer for this request.

    What is asserted has no log-probabilities, so a request that wants them does without such sources.
    """
    opened, refused, failed = [], [], []
    for fill in sorted(fills, key=lambda one: not one.asserted):
        if fill.asserted and request.sampling.num_logprobs is not None:
            refused.append(fill.name)
            continue
        try:
            source = fill.open(request)
        except Exception:
            _log.exception("Fill source '%s' failed while opening.", fill.name)
            failed.append(fill.name)
            continue
        if source is not None:
            opened.append(_Opened(fill, source))
    if not (opened or refused or failed):
        return None
    return RowFills(opened, tuple(refused), failed=failed)
