"""A round: every row's proposals, one target pass over all windows, and what each row keeps of its own.

Rounds read each token before the next step, since proposals and windows depend on it; rows without proposals step in
the same pass with a window of one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

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
class _Drawn:
    chosen: Chosen
    captures: Sequence[Capture | None]

    @property
    def arrays(self) -> list[mx.array]:
        captured = [array for one in self.captures if one is not None for array in one.arrays()]
        return [*self.chosen.arrays, *captured]


@dataclass(frozen=True)
class _Passed:
    drawn: _Drawn
    taps: Mapping[Tap, mx.array]
    has_window: bool
    """Windows are open on it."""


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
        self._before: tuple[int, ...] = ()
        """Width and rows of the last pass."""

    def run(self, rows: Sequence[Row], route: Route, seat: Seat) -> int | None:
        """One round of rows whose tokens are all on the host.

        Returns:
            How many positions were computed; None if nobody proposed anything and nobody has to look: a plain step,
            which needn't be waited for, does as well.
        """
        began = time.perf_counter()
        found = self._proposing.propose(rows)
        is_plain = not found and not any(row.looks_at_every_step for row in rows)
        ahead = self._forwarding.ahead
        if is_plain and ahead.width_for(rows, 1) is None:
            return None
        windows = self._planned(rows, found)
        if not windows:
            ahead.drop()
            return 0
        by_row = {id(window.row): window for window in windows}
        going = [window.row for window in windows]
        width = _width(windows, route)
        width = ahead.width_for(going, width) or width
        windows = [by_row[id(row)] for row in seat(going, width)]
        party = windows[0].row.party
        assert party is not None
        counts = [window.num_tokens for window in windows]
        while (passed := self._passed(windows, route, width, party)) is None:
            # The device went on without their tokens: as if none of it had been.
            party.keep([0] * len(windows))
        verdicts = self._judged(windows, passed.drawn)
        if passed.has_window:
            party.keep([verdict.num_kept for verdict in verdicts])
        for place, window, verdict in zip(party.places, windows, verdicts, strict=True):
            self._tell(window, verdict, _taps(passed.taps, place * width, verdict.num_kept))
            window.row.num_computed += verdict.num_kept
        self._proposing.timed(len(windows), max(counts), time.perf_counter() - began)
        return sum(counts)

    def _passed(self, windows: Sequence[_Window], route: Route, width: int, party: Party) -> _Passed | None:
        """One pass, read; None if it has to be taken back and done again."""
        ahead = self._forwarding.ahead.taken()
        counts = [window.num_tokens for window in windows]
        has_window = ahead is not None or max(counts) > 1
        if has_window:
            party.open_window(counts)
            for window in windows:
                # A wider window than one keeps the tokens, not the bits.
                window.row.is_exact = False
        if ahead is None:
            logits, taps, is_replayed = self._computed(self._step(windows, route, width, party), party)
        else:
            logits, taps, is_replayed = self._awaited(ahead, windows, width, party), {}, True
        party.advance(counts)
        for window in windows:
            window.row.state.record(window.plan.tokens)
        drawn = self._drawn(windows, logits, route)
        mx.async_eval(drawn.arrays)  # type: ignore[no-untyped-call]
        if is_replayed and self._goes_on(windows, width):
            self._forwarding.ahead.begin(party, width)
        if ahead is not None and self._forwarding.ahead.was_late(ahead):
            return None
        mx.eval(drawn.arrays)
        return _Passed(drawn, taps, has_window)

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

    def _awaited(self, ahead: StepAhead, windows: Sequence[_Window], width: int, party: Party) -> mx.array:
        """(M, V) logits of the wanted positions of a window that the device waits for."""
        logits = ahead.finished(
            party.spread(_ids(windows, width), [0] * width),
            party.spread([window.row.num_computed for window in windows], 0),
        )
        wanted = _wanted(windows, width, party)
        return logits if len(wanted) == logits.shape[0] else logits[mx.array(wanted, dtype=mx.int32)]

    def _step(self, windows: Sequence[_Window], route: Route, width: int, party: Party) -> StepInput:
        wanted = _wanted(windows, width, party)
        return StepInput(
            ids=mx.array(party.spread(_ids(windows, width), [0] * width), dtype=mx.int32),
            num_real=party.spread([window.num_tokens for window in windows], 0),
            offsets=party.spread([window.row.num_computed for window in windows], 0),
            route=route,
            taps=self._proposing.taps,
            wanted=None if width == 1 and party.is_full else mx.array(wanted, dtype=mx.int32),
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

    def _judged(self, windows: Sequence[_Window], drawn: _Drawn) -> list[Verdict]:
        """Walk; emitted tokens go to their rows."""
        chosen, captures = drawn.chosen, drawn.captures
        ids = chosen.ids()
        verdicts = []
        start = 0
        for window in windows:
            stop = start + len(window.plan.draws)
            failure = next((chosen.failures[place] for place in range(start, stop) if place in chosen.failures), None)
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


def _ids(windows: Sequence[_Window], width: int) -> list[list[int]]:
    """(rows, L)"""
    return [[*window.plan.tokens, *[0] * (width - window.num_tokens)] for window in windows]


def _wanted(windows: Sequence[_Window], width: int, party: Party) -> list[int]:
    """Positions of the step that something is drawn for."""
    return [
        place * width + position
        for place, window in zip(party.places, windows, strict=True)
        for position in range(len(window.plan.context), window.num_tokens)
    ]
