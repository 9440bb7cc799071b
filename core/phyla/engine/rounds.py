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
from phyla.engine.forwarding import Forwarding
from phyla.engine.party import Party
from phyla.engine.proposing import Proposed, Proposing
from phyla.engine.row import Row
from phyla.engine.trace import Trace
from phyla.model.binding import ModelBinding
from phyla.model.step import Route, StepInput, Tap, width_class
from phyla.sampling.logprobs import Capture, capture

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

    def run(self, rows: Sequence[Row], route: Route, seat: Seat) -> int | None:
        """One round of rows whose tokens are all on the host.

        Returns:
            How many positions were computed; None if nobody proposed anything and nobody has to look: a plain step,
            which needn't be waited for, does as well.
        """
        began = time.perf_counter()
        found = self._proposing.propose(rows)
        if not found and not any(row.looks_at_every_step for row in rows):
            return None
        windows = self._planned(rows, found)
        if not windows:
            return 0
        by_row = {id(window.row): window for window in windows}
        width = _width(windows, route)
        windows = [by_row[id(row)] for row in seat([window.row for window in windows], width)]
        counts = [window.num_tokens for window in windows]
        party = windows[0].row.party
        assert party is not None
        is_plain = max(counts) == 1
        if not is_plain:
            party.open_window(counts)
            for window in windows:
                # A wider window than one keeps the tokens, not the bits.
                window.row.is_exact = False
        step = self._step(windows, route, width, party)
        logits, taps = self._computed(step, party)
        party.advance(counts)
        for window in windows:
            window.row.state.record(window.plan.tokens)
        verdicts = self._judged(windows, logits, route)
        if not is_plain:
            party.keep([verdict.num_kept for verdict in verdicts])
        for place, window, verdict in zip(party.places, windows, verdicts, strict=True):
            self._tell(window, verdict, _taps(taps, place * step.width, verdict.num_kept))
            window.row.num_computed += verdict.num_kept
        self._proposing.timed(len(windows), max(counts), time.perf_counter() - began)
        return sum(counts)

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

    def _step(self, windows: Sequence[_Window], route: Route, width: int, party: Party) -> StepInput:
        ids = [[*window.plan.tokens, *[0] * (width - window.num_tokens)] for window in windows]
        wanted = [
            place * width + position
            for place, window in zip(party.places, windows, strict=True)
            for position in range(len(window.plan.context), window.num_tokens)
        ]
        return StepInput(
            ids=mx.array(party.spread(ids, [0] * width), dtype=mx.int32),
            num_real=party.spread([window.num_tokens for window in windows], 0),
            offsets=party.spread([window.row.num_computed for window in windows], 0),
            route=route,
            taps=self._proposing.taps,
            wanted=None if width == 1 and party.is_full else mx.array(wanted, dtype=mx.int32),
        )

    def _computed(self, step: StepInput, party: Party) -> tuple[mx.array, Mapping[Tap, mx.array]]:
        """The pass, under way on the device: (M, V) logits of the wanted positions, and taps."""
        replayed = self._forwarding.replayed(step, party, is_awaited=True)
        if replayed is not None:
            return replayed, {}
        forward = self._binding.start(step, party.states())
        while not forward.done:
            mx.async_eval(forward.advance(LAYERS_PER_DISPATCH))  # type: ignore[no-untyped-call]
        output = forward.output
        return self._binding.logits_of(output.hidden, step.route).squeeze(0), output.taps

    def _judged(self, windows: Sequence[_Window], logits: mx.array, route: Route) -> list[Verdict]:
        """Draw, wait, walk; emitted tokens go to their rows."""
        plans = [window.plan for window in windows]
        acceptance = self._proposing.acceptance
        chosen = verify(plans, logits, acceptance=acceptance, vectorised=self._vectorised, route=route)
        wanted = [draw.sampler.params.num_logprobs for one in plans for draw in one.draws]
        captures = capture(chosen.logprobs, chosen.tokens, wanted)
        mx.eval(chosen.arrays, [array for one in captures if one is not None for array in one.arrays()])
        ids = chosen.ids()
        verdicts = []
        start = 0
        for window in windows:
            stop = start + len(window.plan.draws)
            failure = next((chosen.failures[place] for place in range(start, stop) if place in chosen.failures), None)
            verdict = settle(window.plan, ids[start:stop], failure=failure)
            _emit(window.row, verdict, [None] * len(window.plan.context) + captures[start:stop])
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
