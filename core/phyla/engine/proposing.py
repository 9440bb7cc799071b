"""Whatever proposes tokens for rows: what a grammar forces, then fills, then the draft method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from phyla.draft.forced import FORCED, ForcedSpans
from phyla.draft.usage import Round, SpeculationUsage
from phyla.engine.filling import FILL, RowFills, open_fills

if TYPE_CHECKING:
    from phyla.draft.constraint import Constraint
    from phyla.draft.fill import FillSource
    from phyla.draft.span import Observed, Span
    from phyla.draft.verify import Acceptance, Verdict
    from phyla.engine.drafting import Drafting, RowDrafting
    from phyla.engine.row import Row
    from phyla.kv.row_state import RowState
    from phyla.model.step import Tap
    from phyla.request import Request


@dataclass(frozen=True)
class Proposed:
    """A span, and who it is from."""

    span: Span
    source: str | None = None
    """None is the draft method."""

    is_fill: bool = False


@dataclass
class RowProposers:
    """What proposes for one row: the first span wins a round, and everybody hears what became of it."""

    usage: SpeculationUsage
    forced: ForcedSpans | None = None
    fills: RowFills | None = None
    method: RowDrafting | None = None
    uncounted: list[_Uncounted] = field(default_factory=list)
    """Rounds whose text isn't made yet: it may have a stop string."""

    def wants_round(self, num_rows: int, *, is_unread: bool) -> bool:
        """Whether the next step must be a round of its own rather than one of the pipeline.

        Args:
            num_rows: that step together.
            is_unread: a token was drawn that no constraint has heard of. If something is forced now, that is the token.
        """
        # A fill is asked with every token known: an asserted span stands in for what would be drawn next.
        if (self.fills is not None and self.fills.opened) or self._is_forced(2 if is_unread else 1):
            return True
        return self.method is not None and self.method.wants_round(num_rows)

    @property
    def looks_at_every_step(self) -> bool:
        return self.method is not None and self.method.looks_at_every_step and not self.method.is_off

    def from_host(self, history: Sequence[int], room: int) -> Proposed | None:
        """The first span of those who need no look at the other rows.

        Raises:
            ConstraintError: the row's constraint failed.
        """
        span = None if self.forced is None else self.forced.propose(history, room)
        if span is not None:
            return Proposed(span, FORCED)
        filled = None if self.fills is None else self.fills.propose(history, room)
        return None if filled is None else Proposed(filled[1], filled[0], is_fill=True)

    def stepped_plainly(self, history: Sequence[int], *, num_emitted: int) -> None:
        """A token came out of the pipeline, without a proposal."""
        self.uncounted.append(_Uncounted(Round(num_emitted)))
        if self.method is not None:
            self.method.stepped(history, num_emitted=num_emitted)

    def verified(self, history: Sequence[int], verdict: Verdict, proposed: Proposed | None) -> None:
        """A round of this row ended."""
        source = None if proposed is None else proposed.source
        found = Round(len(verdict.tokens), verdict.num_drafted, verdict.num_accepted, verdict.num_asserted, source)
        self.uncounted.append(_Uncounted(found, is_fill=proposed is not None and proposed.is_fill))
        if self.method is None:
            return
        if source is None:
            self.method.verified(history, verdict)
        else:
            # Others' spans are no evidence of how the method's would have fared.
            self.method.stepped(history, num_emitted=len(verdict.tokens))

    def count(self, num_said: int | None = None) -> None:
        """The text of all rounds so far was made: they count now.

        Args:
            num_said: where a stop string ended the row, how many of their tokens it took. What was computed beyond
                them is no part of the answer, and the method's own evidence all the same.
        """
        for one in self.uncounted:
            found = one.found
            if num_said is not None:
                if num_said == 0:
                    break
                found = found.cut(num_said)
                num_said -= found.num_emitted
            self.usage.record(found)
            if self.fills is not None and one.is_fill:
                self.fills.record(found)
        self.uncounted.clear()

    def observe(self, step: Observed, proposed: Proposed | None = None) -> None:
        """The row computed some tokens, those of a verified span among them."""
        if self.fills is not None:
            self.fills.observe(step, proposed.source if proposed is not None and proposed.is_fill else None)
        if self.method is not None:
            is_own = proposed is None or proposed.source is None
            self.method.observe(step if is_own else replace(step, num_drafted=0, num_accepted=0))

    def _is_forced(self, num_tokens: int) -> bool:
        try:
            return self.forced is not None and self.forced.promises(num_tokens)
        except Exception:
            # A round asks again, where the failure is this row's alone.
            return True


class _Uncounted(NamedTuple):
    found: Round
    is_fill: bool = False


@dataclass(frozen=True)
class ProposingOptions:
    """What proposes beside the draft method."""

    most_forced: int = 0
    """Most tokens that a grammar forces which are proposed at once; 0 proposes none."""

    fills: tuple[FillSource, ...] = ()
    form_changes: frozenset[int] = frozenset()
    """Row lengths at which a KV scheme of the model begins to encode."""


@dataclass(frozen=True)
class Proposing:
    """The engine's own. On the engine thread."""

    drafting: Drafting | None = None
    options: ProposingOptions = ProposingOptions()

    @property
    def name(self) -> str | None:
        """What `/stats` calls it; None if nothing ever proposes."""
        if self.drafting is not None:
            return self.drafting.method
        if self.options.most_forced:
            return FORCED
        return FILL if self.options.fills else None

    @property
    def acceptance(self) -> Acceptance:
        return "exact" if self.drafting is None else self.drafting.acceptance

    @property
    def is_on_host(self) -> bool:
        """Whether nothing that proposes needs the device for it."""
        return self.drafting is None or self.drafting.provider.facts.is_lookup

    @property
    def taps(self) -> tuple[Tap, ...]:
        """Hidden rows that somebody wants to observe."""
        return () if self.drafting is None else self.drafting.provider.facts.taps

    def open(self, request: Request, state: RowState, constraint: Constraint | None) -> RowProposers | None:
        """A row's own, or None if nobody would ever propose for it."""
        forced = None
        if constraint is not None and self.options.most_forced:
            forced = ForcedSpans(constraint, self.options.most_forced)
        fills = open_fills(self.options.fills, request)
        if self.drafting is None and forced is None and fills is None:
            return None
        own = FILL if forced is None else FORCED
        usage = SpeculationUsage(own if self.drafting is None else self.drafting.method)
        method = None if self.drafting is None else self.drafting.open(request, state, usage)
        return RowProposers(usage, forced, fills, method)

    def propose(self, rows: Sequence[Row]) -> dict[int, Proposed]:
        """Spans by the index of their row; rows that want none have none, and one whose constraint fails has ended."""
        found: dict[int, Proposed] = {}
        rooms = [self._room(row) for row in rows]
        for index, row in enumerate(rows):
            if row.proposers is None or rooms[index] < 1:
                continue
            try:
                proposed = row.proposers.from_host(row.history, rooms[index])
            except Exception as error:
                row.fail(error)
                continue
            if proposed is not None:
                found[index] = proposed
        if self.drafting is not None:
            left = {index: rooms[index] for index, row in enumerate(rows) if index not in found and not row.has_ended}
            spans = self.drafting.propose(rows, left)
            found |= {index: Proposed(span) for index, span in spans.items()}
        return found

    def timed(self, num_rows: int, width: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        if self.drafting is not None:
            self.drafting.costs.record(num_rows, width, seconds)

    def _room(self, row: Row) -> int:
        """Most tokens to propose: the last one that a row may emit comes from the target itself."""
        room = row.max_tokens - row.num_emitted - 1
        # Past the next change of form, plain decoding meets encoded tokens, so a window stays on this side of it.
        ahead = [length for length in self.options.form_changes if length > row.num_computed]
        return min(room, min(ahead) - row.num_computed - 1) if ahead else room
