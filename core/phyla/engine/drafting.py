"""Draft methods inside the engine: one for the engine, and what each row has of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from phyla.draft.length import DraftLength, StepCosts
from phyla.draft.span import Observed, RowProposal, Span, SpanSource
from phyla.draft.track import Track
from phyla.draft.usage import SpeculationUsage
from phyla.kv.row_state import draft_set

if TYPE_CHECKING:
    from phyla.draft.method import DraftProvider
    from phyla.draft.verify import Acceptance, Verdict
    from phyla.engine.row import Row
    from phyla.kv.row_state import RowState
    from phyla.request import Request

_log = logging.getLogger(__name__)


@dataclass
class RowDrafting:
    """What one row has of a method. A method that fails is turned off for the row; its tokens go on."""

    source: SpanSource
    length: DraftLength
    usage: SpeculationUsage
    looks_at_every_step: bool
    """It needs hidden rows of every step, so that each waits for the host and is told to it."""

    state: RowState
    track: Track | None = None
    """For lookups with adaptive lengths."""

    is_off: bool = False

    def turn_off(self, reason: str) -> None:
        """Draft no more for this row; what its draft set holds may be half a step, so it goes too."""
        self.is_off = True
        self.usage.reason = reason
        self.state.drop_set(draft_set(self.usage.method))

    def stepped(self, history: Sequence[int], *, num_emitted: int) -> None:
        """A step brought so many tokens without a span of this method."""
        if self.track is None or not num_emitted:
            self.length.record(0, 0)
        elif not self.is_off:
            self._guarded(lambda track: track.stepped(history, num_emitted))

    def verified(self, history: Sequence[int], verdict: Verdict) -> None:
        """A round ended that verified this method's span, or none."""
        num_drafted, num_accepted = verdict.num_drafted, verdict.num_accepted
        # Silent guesses are evidence for steps without drafts; without them an idle row drifts to its next attempt.
        if num_drafted or self.track is None:
            self.length.record(num_drafted, num_accepted)
        if not self.is_off:
            self._guarded(lambda track: track.verified(history, num_accepted))

    def _guarded(self, look: Callable[[Track], None]) -> None:
        if self.track is None:
            return
        try:
            look(self.track)
        except Exception as error:
            _log.exception("Draft method '%s' failed while looking up.", self.usage.method)
            self.turn_off(f"the method failed ({type(error).__name__})")

    def observe(self, step: Observed) -> None:
        """Tell the source, unless it has failed before."""
        if self.is_off:
            return
        try:
            self.source.observe(step)
        except Exception as error:
            _log.exception("Draft method '%s' failed while observing a step.", self.usage.method)
            self.turn_off(f"the method failed ({type(error).__name__})")

    def wants_round(self, num_rows: int) -> bool:
        """Whether the next step must be a round of its own rather than one of the pipeline."""
        return not self.is_off and (self.looks_at_every_step or self.wanted(num_rows) > 0)

    def wanted(self, num_rows: int) -> int:
        """Drafts that pay now; none for a lookup that is lost."""
        is_lost = self.track is not None and not self.track.is_on_track
        return 0 if is_lost else self.length.wanted(num_rows)


@dataclass(frozen=True)
class Drafting:
    """The engine's method. On the engine thread."""

    method: str
    provider: DraftProvider
    most_tokens: int
    acceptance: Acceptance = "exact"
    is_adaptive: bool = True
    costs: StepCosts = field(default_factory=StepCosts)

    def open(self, request: Request, state: RowState, usage: SpeculationUsage) -> RowDrafting:
        """A row's own; gives its state an empty draft set where none came with a prefix."""
        name = draft_set(self.method)
        facts = self.provider.facts
        is_missing = bool(facts.layout) and name not in state.sets and state.num_tokens > 0
        if name not in state.sets:
            state.add_set(name, self.provider.new_states())
        source = self.provider.open(request, state.sets[name])
        length = DraftLength(self.most_tokens, self.costs if self.is_adaptive else None)
        drafting = RowDrafting(
            source=source,
            length=length,
            usage=usage,
            looks_at_every_step=bool(facts.taps),
            state=state,
            track=Track(source, length) if facts.is_lookup and self.is_adaptive else None,
        )
        if is_missing and facts.follows_from_tokens:
            usage.reason = "the prefix came without the drafter's state, so the drafter read it again"
        elif is_missing:
            drafting.turn_off("the prefix came without the drafter's state")
        return drafting

    def propose(self, rows: Sequence[Row], rooms: Mapping[int, int]) -> dict[int, Span]:
        """Spans by the index of their row, of rows that have none yet; rows that want none have none.

        Args:
            rows: those that step together.
            rooms: by the index of each row to ask, most tokens to propose.
        """
        asked: list[RowProposal] = []
        for index, most in rooms.items():
            row = rows[index]
            drafting = None if row.proposers is None else row.proposers.method
            if drafting is None or drafting.is_off:
                continue
            room = min(drafting.wanted(len(rows)), most)
            if room > 0:
                asked.append(RowProposal(index, drafting.source, row.history, room, row.sampler, row.num_drawn))
        if not asked:
            return {}
        try:
            spans = self.provider.propose(asked)
        except Exception as error:
            _log.exception("Draft method '%s' failed while proposing.", self.method)
            for one in asked:
                proposers = rows[one.row].proposers
                assert proposers is not None
                assert proposers.method is not None
                proposers.method.turn_off(f"the method failed ({type(error).__name__})")
            return {}
        return {one.row: span for one, span in zip(asked, spans, strict=True) if span is not None and span.tokens}
