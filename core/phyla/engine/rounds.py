"""A round: every row's proposals, one target pass over all windows, and what each row keeps of its own.

Rounds read each token before the next step, since proposals and windows depend on it; rows without proposals step in
the same pass with a window of one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import mlx.core as mx

from phyla.draft.span import Observed
from phyla.draft.verify import Plan, RowRound, Verdict, plan, settle, verify
from phyla.engine.ahead import StepAhead
from phyla.engine.forwarding import Forwarding
from phyla.engine.party import Party
from phyla.engine.proposing import Proposed, Proposing
from phyla.engine.row import Row
from phyla.engine.trace import Trace
from phyla.model.binding import ModelBinding
from phyla.model.step import Route, StepInput, Tap, width_class
from phyla.sampling.logprobs import Capture, capture
from phyla.sampling.sampler import Chosen

LAYERS_PER_DISPATCH = 4
"""The device begins with a pass's first layers while the host builds the rest: unlike a plain step, a round has no step
before it to hide that behind."""

Seat = Callable[[Sequence[Row], int], list[Row]]
"""Seats exactly these rows where they step so many positions; returns them in the order of their seats."""


@dataclass(frozen=True)
class _Window:
    row: Row
    plan: Plan
    proposed: Proposed | None

    @property
    def num_tokens(self) -> int:
        return len(self.plan.tokens)


@dataclass(frozen=True)
class _Staged:
    """A round that can begin."""

    windows: Sequence[_Window]
    """In the order of their seats."""

    width: int
    party: Party

    @property
    def has_window(self) -> bool:
        """Whether some of it may be taken back."""
        return self.width > 1

    @property
    def counts(self) -> list[int]:
        """Positions per row."""
        return [window.num_tokens for window in self.windows]

    def ids(self) -> tuple[list[int], ...]:
        """(B, L), empty seats and what is behind a shorter window padded."""
        padded = [[*window.plan.tokens, *[0] * (self.width - window.num_tokens)] for window in self.windows]
        return self.party.spread(padded, [0] * self.width)

    def offsets(self) -> tuple[int, ...]:
        """(B,), the position of each row's first token."""
        return self.party.spread([window.row.num_computed for window in self.windows], 0)

    def wanted(self) -> list[int]:
        """Positions of the step that something is drawn for."""
        return [
            place * self.width + position
            for place, window in zip(self.party.places, self.windows, strict=True)
            for position in range(len(window.plan.context), window.num_tokens)
        ]


@dataclass(frozen=True)
class _Drawn:
    chosen: Chosen
    captures: Sequence[Capture | None]

    @property
    def captured(self) -> list[mx.array]:
        return [array for one in self.captures if one is not None for array in one.arrays()]


@dataclass(frozen=True)
class _Passed:
    drawn: _Drawn
    ids: Sequence[int]
    """Of all draws; see `Chosen.ids`."""

    taps: Mapping[Tap, mx.array]


class Rounds:
    """Runs rounds for one model."""

    def __init__(
        self,
        binding: ModelBinding,
        forwarding: Forwarding,
        proposing: Proposing,
        trace: Trace,
        *,
        vectorised_sampling: bool,
    ) -> None:
        self._binding = binding
        self._forwarding = forwarding
        self._proposing = proposing
        self._trace = trace
        self._vectorised = vectorised_sampling
        self._staged: _Staged | None = None
        """What the window that waits was posted."""

        self._before: tuple[int, ...] = ()
        """Width and rows of the last pass that was replayed."""

    def run(self, rows: Sequence[Row], route: Route, seat: Seat, *, is_followed: bool) -> int | None:
        """One round of rows whose tokens are all on the host.

        Args:
            rows: who steps.
            route: of the step.
            seat: seats them.
            is_followed: other work of the device's comes next.

        Returns:
            How many positions were computed; None if a plain step, which needn't be waited for, does as well: nobody
            proposed anything, nobody has to look and no window waits; or if nobody is left.
        """
        began = time.perf_counter()
        staged, self._staged = self._staged, None
        if staged is None or not self._forwarding.ahead.waits_for(rows):
            staged = self._gathered(rows, route, seat)
        if staged is None:
            return None
        windows, counts, party = staged.windows, staged.counts, staged.party
        passed = self._passed(staged, route, is_followed=is_followed)
        is_late = passed is None
        if passed is None:
            # The device went on without their tokens: as if none of it had been, and not ahead this time.
            party.keep([0] * len(windows))
            self._forwarding.ahead.drop()
            passed = self._passed(staged, route, is_followed=is_followed)
            assert passed is not None, "what isn't started ahead can't be late"
        verdicts = self._judged(windows, passed)
        if staged.has_window:
            party.keep([verdict.num_kept for verdict in verdicts])
        for place, window, verdict in zip(party.places, windows, verdicts, strict=True):
            self._tell(window, verdict, _taps(passed.taps, place * staged.width, verdict.num_kept))
            window.row.num_computed += verdict.num_kept
        self._stage(staged)
        # Neither what was computed twice nor what was wider than it had to be says what such a step costs.
        if not is_late and (max(counts) > 1 or staged.width == 1):
            self._proposing.timed(len(windows), max(counts), time.perf_counter() - began)
        return sum(counts)

    def drop_ahead(self) -> None:
        """Let go of the window that waits, if one does, and of what it was posted."""
        self._staged = None
        self._forwarding.ahead.drop()

    def _gathered(self, rows: Sequence[Row], route: Route, seat: Seat) -> _Staged | None:
        """Seated rows and their windows; None if a plain step does as well, or nobody is left."""
        ahead = self._forwarding.ahead
        found = self._proposing.propose(rows)
        is_plain = not found and not any(row.looks_at_every_step for row in rows)
        if is_plain and ahead.width_for(rows, 1) is None:
            return None
        windows = self._planned(rows, found)
        if not windows:
            return None
        by_row = {id(window.row): window for window in windows}
        going = [window.row for window in windows]
        width = _width(windows, route)
        width = ahead.width_for(going, width) or width
        windows = [by_row[id(row)] for row in seat(going, width)]
        party = windows[0].row.party
        assert party is not None
        return _Staged(windows, width, party)

    def _stage(self, before: _Staged) -> None:
        """Give a window that waits its tokens at once: what else is to be done about the last one the device needn't
        wait for. Rows that are then found to have ended (a stop string), or get company, gather anew.
        """
        ahead = self._forwarding.ahead
        rows = [window.row for window in before.windows]
        if not ahead.waits_for(rows) or any(row.has_ended or _has_fills(row) for row in rows):
            return
        windows = self._planned(rows, self._proposing.propose(rows))
        if len(windows) == len(rows) and _width(windows, "fast") <= before.width:
            self._staged = replace(before, windows=windows)
            ahead.post(self._staged.ids(), self._staged.offsets())

    def _passed(self, staged: _Staged, route: Route, *, is_followed: bool) -> _Passed | None:
        """One pass, read; None if it has to be taken back and done again."""
        windows, counts, width, party = staged.windows, staged.counts, staged.width, staged.party
        ahead = self._forwarding.ahead
        step = ahead.taken()
        if staged.has_window:
            party.open_window(counts)
            for window in windows:
                # A wider window than one keeps the tokens, not the bits.
                window.row.is_exact = False
        if step is None:
            logits, taps, is_replayed = self._computed(self._step(staged, route), party)
        else:
            logits, taps, is_replayed = _awaited(step, staged), {}, True
        party.advance(counts)
        for window in windows:
            window.row.state.record(window.plan.tokens)
        drawn = self._drawn(windows, logits, route)
        readout = self._forwarding.readouts.open(drawn.chosen)
        mx.async_eval(drawn.captured, readout.arrays)  # type: ignore[no-untyped-call]
        # Reading log-probabilities may ask the device for more.
        is_free = not is_followed and not any(drawn.captures)
        if is_replayed and self._goes_on(windows, width) and is_free:
            ahead.begin(party, width)
        if step is not None and ahead.was_late(step):
            return None
        return _Passed(drawn, readout.ids(), taps)

    def _planned(self, rows: Sequence[Row], found: Mapping[int, Proposed]) -> list[_Window]:
        """Windows of the rows whose constraint could be asked; the others fail alone."""
        windows = []
        for index, row in enumerate(rows):
            if row.has_ended:
                continue
            proposed = found.get(index)
            round_ = RowRound(
                sampler=row.sampler,
                history=row.history,
                step=row.num_drawn,
                room=row.max_tokens - row.num_emitted,
                eos_ids=row.ending_ids,
                constraint=row.constraint,
            )
            try:
                windows.append(_Window(row, plan(round_, None if proposed is None else proposed.span), proposed))
            except Exception as error:
                row.fail(error)
        return windows

    def _goes_on(self, windows: Sequence[_Window], width: int) -> bool:
        """Whether it is likely that these rows have a window as wide next; what decides is what was."""
        before, self._before = self._before, (width, *sorted(id(window.row) for window in windows))
        return (
            before == self._before
            and self._proposing.is_on_host
            and max(window.num_tokens for window in windows) > 1
            and all(window.row.max_tokens - window.row.num_emitted > window.num_tokens for window in windows)
        )

    def _step(self, staged: _Staged, route: Route) -> StepInput:
        party = staged.party
        return StepInput(
            ids=mx.array(staged.ids(), dtype=mx.int32),
            num_real=party.spread(staged.counts, 0),
            offsets=staged.offsets(),
            route=route,
            taps=self._proposing.taps,
            wanted=None if staged.width == 1 and party.is_full else mx.array(staged.wanted(), dtype=mx.int32),
        )

    def _computed(self, step: StepInput, party: Party) -> tuple[mx.array, Mapping[Tap, mx.array], bool]:
        """The pass, under way on the device: (M, V) logits of the wanted positions, taps, and whether it is a trace."""
        replayed = self._forwarding.replayed(step, party, is_awaited=True)
        if replayed is not None:
            return replayed, {}, True
        forward = self._binding.start(step, party.states())
        while not forward.done:
            mx.async_eval(forward.advance(LAYERS_PER_DISPATCH))  # type: ignore[no-untyped-call]
        output = forward.output
        return self._binding.logits_of(output.hidden, step.route).squeeze(0), output.taps, False

    def _drawn(self, windows: Sequence[_Window], logits: mx.array, route: Route) -> _Drawn:
        """What the target says at each position; nothing is evaluated."""
        plans = [window.plan for window in windows]
        acceptance = self._proposing.acceptance
        chosen = verify(plans, logits, acceptance=acceptance, vectorised=self._vectorised, route=route)
        wanted = [draw.sampler.params.num_logprobs for one in plans for draw in one.draws]
        return _Drawn(chosen, capture(chosen.logprobs, chosen.tokens, wanted))

    def _judged(self, windows: Sequence[_Window], passed: _Passed) -> list[Verdict]:
        """Walk; emitted tokens go to their rows."""
        ids, captures, failures = passed.ids, passed.drawn.captures, passed.drawn.chosen.failures
        verdicts = []
        start = 0
        for window in windows:
            stop = start + len(window.plan.draws)
            failure = next((failures[place] for place in range(start, stop) if place in failures), None)
            verdict = settle(window.plan, ids[start:stop], failure=failure)
            _emit(window.row, verdict, [*[None] * len(window.plan.context), *captures[start:stop]])
            verdicts.append(verdict)
            start = stop
        return verdicts

    def _tell(self, window: _Window, verdict: Verdict, taps: dict[Tap, mx.array]) -> None:
        proposers = window.row.proposers
        if proposers is None:
            return
        source = None if window.proposed is None else window.proposed.source or proposers.usage.method
        self._trace.verified(window.row.key, window.plan.drafts, verdict, source)
        if window.proposed is not None and window.proposed.is_fill:
            self._trace.filled(window.row.key, window.proposed.span, verdict, source)
        proposers.verified(window.row.history, verdict, window.proposed)
        kept = window.plan.tokens[: verdict.num_kept]
        step = Observed(kept, window.row.num_computed, verdict.num_drafted, verdict.num_accepted, taps=taps)
        proposers.observe(step, window.proposed)


def _width(windows: Sequence[_Window], route: Route) -> int:
    widest = max(window.num_tokens for window in windows)
    # A lone exact row is computed at its own width: nothing is traced there, and padding costs.
    return widest if route == "exact" else width_class(widest)


def _emit(row: Row, verdict: Verdict, captures: Sequence[Capture | None]) -> None:
    for token_id, captured in zip(verdict.tokens, captures, strict=False):
        row.history.append(token_id)
        row.num_drawn += 1
        row.num_emitted += 1
        row.unsent.append((token_id, None if captured is None else captured.read()))
    if verdict.error is not None:
        row.fail(verdict.error)
    elif verdict.ended is not None:
        row.reason = "length" if verdict.ended == "length" else "stop"


def _taps(taps: Mapping[Tap, mx.array], start: int, num_kept: int) -> dict[Tap, mx.array]:
    """The kept positions of one row: (1, num_kept, E) each."""
    return {tap: hidden[:, start : start + num_kept] for tap, hidden in taps.items()}


def _awaited(step: StepAhead, staged: _Staged) -> mx.array:
    """(M, V) logits of the wanted positions of a window that was started ahead."""
    if not step.is_posted:
        step.post(staged.ids(), staged.offsets())
    wanted, logits = staged.wanted(), step.logits()
    return logits if len(wanted) == logits.shape[0] else logits[mx.array(wanted, dtype=mx.int32)]


def _has_fills(row: Row) -> bool:
    """Whether something may be asked that counts what it is asked."""
    return row.proposers is not None and row.proposers.fills is not None
