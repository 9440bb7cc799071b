"""Computes what the scheduler decided: the only part of the engine that talks to MLX. Belongs to the engine thread."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import mlx.core as mx

from phyla.draft.span import Observed
from phyla.engine.ahead import AheadCounts
from phyla.engine.compiled_step import CompiledCounts
from phyla.engine.drawn import Drawn, draw
from phyla.engine.fast_route import FastRoute
from phyla.engine.forwarding import Forwarding
from phyla.engine.grouping import GroupOption
from phyla.engine.party import Party
from phyla.engine.proposing import Proposing
from phyla.engine.rounds import Rounds
from phyla.engine.row import Chunk, Pending, Row, in_one_batch
from phyla.engine.scheduler import PrefillPiece
from phyla.engine.trace import Trace
from phyla.kv.group import GroupName, LoopGroup
from phyla.kv.row_state import RowState
from phyla.model.binding import ModelBinding
from phyla.model.step import Route, StepInput
from phyla.sampling.sampler import Draw, checked_token

STEPS_PER_CACHE_CLEAR = 256
"""Decode steps after which MLX's allocator gives back what it hoards; the reference loop's own number."""

LEAST_HOARD_BYTES = 64 << 20
"""Less than that stays with the allocator: to clear it, MLX waits for every CPU stream that the process ever had."""

STEPS_PER_STATE_EVALUATION = 8
"""Decode steps of a row after which everything stored is asked for by name. The logits, or the next step's, need nearly
all of it anyway, and naming it costs as much as a few kernels; what they don't need mustn't pile up."""


@dataclass(frozen=True)
class RunnerOptions:
    """Switches for paired runs; the tokens are the same either way."""

    early_first_token: bool = True
    no_pipeline: bool = False
    vectorised_sampling: bool = True
    group: GroupOption = "auto"
    most_rows: int = 8
    """That ever share a step."""

    fast: FastRoute | None = None
    """How shared steps compute; None: the plainest way."""

    sync_first_token: bool = False
    """Wait for the device around each row's first step, so that a trace's phases don't lend time to each other."""

    memory_limit_bytes: int | None = None
    """What MLX's allocator should stay below: past it, it gives back what it hoards before it asks for more."""


@dataclass(frozen=True)
class Stepped:
    """What a step was."""

    kind: Literal["decode", "verify"]
    num_tokens: int
    """Positions that were computed."""

    group: GroupName = "loop"
    """What held the rows' states."""


@dataclass(frozen=True)
class _Drawing:
    """A draw under way, and whose it is."""

    rows: Sequence[Row]
    drawn: Drawn

    @property
    def arrays(self) -> list[mx.array]:
        return self.drawn.arrays()


class Runner:
    """Prefill by layer spans, decode one step ahead.

    The next token is drawn in the dispatch of the forward where the host has no say in it; otherwise (a constraint, a
    penalty) in one of its own, once the token before was read.

    What fails on the way fails its rows (`Row.error`), never the runner.
    """

    def __init__(self, binding: ModelBinding, options: RunnerOptions, trace: Trace, proposing: Proposing) -> None:
        self._binding = binding
        self._proposing = proposing
        self._options = options
        self._layout = binding.facts.layout
        self._shared: Party | None = None
        """The common group: made when rows first share steps, from what their states can do."""

        self._forwarding = Forwarding(binding, options.fast, options.group, options.most_rows)
        self._rounds = Rounds(
            binding, self._forwarding, proposing, trace, vectorised_sampling=options.vectorised_sampling
        )
        self._num_steps = 0
        limit = options.memory_limit_bytes
        self._limit_before = None if limit is None else mx.set_memory_limit(limit)

    def prefill(self, row: Row, piece: PrefillPiece) -> bool:
        """Advance a chunk by some layers and wait for them.

        Returns:
            Whether the chunk is through.
        """
        self.drop_ahead()
        if piece.is_new:
            row.chunk = self._start_chunk(row, piece)
        assert row.chunk is not None, "the scheduler went on with a chunk that wasn't begun"
        forward = row.chunk.forward
        if piece.route == "fast":
            row.state.leave_exact_route()
            forward.leave_exact_route()
        to_evaluate = forward.advance(piece.num_layers)
        # Nobody looks at a chunk's last hidden rows: what only they need isn't computed.
        mx.eval(to_evaluate[1:] if forward.done and len(to_evaluate) > 1 else to_evaluate)
        if not forward.done:
            return False
        row.state.record(row.chunk.ids)
        row.num_computed += len(row.chunk.ids)
        if row.proposers is not None:
            start = row.num_computed - len(row.chunk.ids)
            row.proposers.observe(Observed(row.chunk.ids, start, is_prefill=True, taps=forward.output.taps))
        row.chunk = None
        if _hoards():
            mx.clear_cache()
        return True

    def step(
        self,
        rows: Sequence[Row],
        route: Route,
        *,
        is_shared: bool,
        reads_at_once: bool = False,
        is_followed: bool = False,
    ) -> Stepped:
        """One decode step of rows that step together.

        The forward is dispatched from tokens that may still be on the device; while it runs the host reads them.

        Args:
            rows: who steps.
            route: of the step.
            is_shared: they sit in the common group; otherwise each sits alone.
            reads_at_once: wait for the drawn tokens: something long comes next on the device.
            is_followed: something other than these rows' next step comes next on the device.
        """
        stepped = Stepped("decode", len(rows))
        is_synced = self._options.sync_first_token and any(row.num_drawn == 0 for row in rows)
        if is_synced:
            self.drop_ahead()
            mx.synchronize()
        try:
            wants_round = any(row.wants_round(len(rows)) for row in rows)
            num_verified = None
            if wants_round:
                num_verified = self._verified(rows, route, is_shared=is_shared, is_followed=is_followed)
            if num_verified is None:
                self._pipelined(rows, route, is_shared=is_shared, reads_at_once=reads_at_once, is_awaited=wants_round)
            else:
                stepped = Stepped("verify", num_verified)
        except Exception as error:
            for row in rows:
                row.fail(error)
        if is_synced:
            self.drop_ahead()
            mx.synchronize()
        self._num_steps += 1
        if self._num_steps % STEPS_PER_CACHE_CLEAR == 0 and _hoards():
            self.drop_ahead()
            mx.clear_cache()
        # One whose last token was only read stands by now.
        party = next((row.party for row in rows if row.party is not None), None)
        return stepped if party is None else replace(stepped, group=party.group_name)

    def _verified(self, rows: Sequence[Row], route: Route, *, is_shared: bool, is_followed: bool) -> int | None:
        """A round, if somebody has something to propose; None otherwise."""
        self._read([row for row in rows if row.pending is not None])
        return self._rounds.run(
            [row for row in rows if row.wants_step],
            route,
            lambda going, width: self._seated(going, width, is_shared=is_shared),
            is_followed=is_followed,
        )

    def _pipelined(
        self, rows: Sequence[Row], route: Route, *, is_shared: bool, reads_at_once: bool, is_awaited: bool
    ) -> None:
        """A plain step.

        Args:
            rows: who steps.
            route: of the step.
            is_shared: they sit in the common group.
            reads_at_once: wait for the drawn tokens.
            is_awaited: all tokens were read for a round, which then had nothing to propose. (A row's first step has
                none before it either, but isn't worth a trace of its own.)
        """
        began = time.perf_counter()
        reads_at_once = reads_at_once or self._options.no_pipeline
        self.drop_ahead()
        going = self._seated([row for row in rows if row.wants_step], 1, is_shared=is_shared)
        unread = [row for row in rows if row.pending is not None]
        logits = self._forward(going, route, is_awaited=is_awaited) if going else None
        if logits is not None:
            # Where nothing that will be read can change the draws, they go out with the forward.
            drawing = None if any(row.draws_by_history for row in going) else self._drawing(going, logits, route)
            mx.async_eval([logits] if drawing is None else drawing.arrays, self._due(going))  # type: ignore[no-untyped-call]
            self._read(unread)
            if drawing is None and (drawing := self._drawing(going, logits, route)) is not None:
                mx.async_eval(drawing.arrays)  # type: ignore[no-untyped-call]
            if drawing is not None:
                self._settle(drawing, reads_at_once=reads_at_once)
        else:
            self._read(unread)
        # One step, either the one before or this one, was waited for: that is what it costs.
        if going and bool(unread) != reads_at_once:
            self._proposing.timed(len(going), 1, time.perf_counter() - began)

    def drop_ahead(self) -> None:
        """Something else than the next step is about to be asked of the device: nothing may wait there."""
        self._rounds.drop_ahead()

    def leave(self, row: Row) -> None:
        """The row is done: its seat is free, and a chunk under way is dropped whole."""
        self.drop_ahead()
        row.chunk = None
        row.pending = None
        if row.party is not None:
            row.party.leave(row)

    def probe(self, state: RowState, num_tokens: int) -> float:
        """Seconds that a chunk takes, measured the second time: the first also compiles.

        Args:
            state: an empty row; of no use afterwards.
            num_tokens: of the chunk.
        """
        group = LoopGroup(self._layout)
        group.seat(state)
        seconds = 0.0
        for offset in (0, num_tokens):
            ids = mx.zeros((1, num_tokens), dtype=mx.int32)
            step = StepInput(ids=ids, num_real=(num_tokens,), offsets=(offset,), route="fast")
            began = time.perf_counter()
            mx.eval(self._binding.forward(step, group.states()).hidden)
            seconds = time.perf_counter() - began
        mx.clear_cache()
        return seconds

    def memory(self) -> tuple[int, int]:
        """Bytes that MLX's allocator has in use now, and had at most."""
        return mx.get_active_memory(), mx.get_peak_memory()

    @property
    def ahead_counts(self) -> AheadCounts:
        """Of windows that were started ahead; any thread may look."""
        return self._forwarding.ahead.counts

    @property
    def compiled_counts(self) -> CompiledCounts:
        """Of traced steps; any thread may look."""
        return self._forwarding.compiled_counts

    def traces_alone(self, row: Row) -> bool:
        """Whether a row that steps on the exact route would be traced on the fast one."""
        return not row.has_ended and self._forwarding.traces_alone(row.state)

    def close(self) -> None:
        """The thread is about to end: let MLX finish, and give back what it holds for this thread.

        Without it MLX now and then aborts the process at exit (seen with 0.32.4 on a CPU, 1 in 12 runs).
        """
        self._forwarding.close()
        mx.synchronize()
        mx.clear_cache()
        mx.clear_streams()
        if self._limit_before is not None:
            mx.set_memory_limit(self._limit_before)

    def _start_chunk(self, row: Row, piece: PrefillPiece) -> Chunk:
        ids = tuple(row.history[piece.start : piece.start + piece.num_tokens])
        self._sit_alone(row, len(ids))
        assert row.party is not None
        step = StepInput(
            ids=mx.array([ids], dtype=mx.int32),
            num_real=(len(ids),),
            offsets=(piece.start,),
            route=piece.route,
            taps=() if row.proposers is None else self._proposing.taps,
        )
        return Chunk(self._binding.start(step, row.party.states()), ids)

    def _forward(self, rows: Sequence[Row], route: Route, *, is_awaited: bool) -> mx.array:
        """Build one step: (B, V) logits."""
        party = rows[0].party
        assert party is not None
        step = StepInput(
            ids=_inputs(rows, party),
            num_real=party.spread((1,) * len(rows), 0),
            offsets=party.spread([row.num_computed for row in rows], 0),
            route=route,
        )
        logits = self._forwarding.logits(step, party, is_awaited=is_awaited)
        party.advance((1,) * len(rows))
        for row in rows:
            if row.pending is None:
                row.note_computed(row.input_id)
            else:
                row.pending.is_forwarded = True
            row.num_computed += 1
        return logits

    def _read(self, rows: Sequence[Row]) -> None:
        for row in rows:
            assert row.pending is not None
            drawn, index = row.pending.drawn, row.pending.index
            try:
                row.take(checked_token(drawn.ids()[index]), drawn.logprobs(index))
            except Exception as error:
                row.fail(error)

    def _due(self, rows: Sequence[Row]) -> list[mx.array]:
        """What rows that step together have stored, when it is time to evaluate it by name."""
        party = rows[0].party
        # By the rows' own count: of rows that step alone in turn, the runner's would always meet the same one.
        if rows[0].num_computed % STEPS_PER_STATE_EVALUATION or party is None:
            return []
        stored = zip(self._layout, party.states(), strict=True)
        return [array for layer, state in stored if layer.owns_state for array in state.evaluate()]

    def _drawing(self, rows: Sequence[Row], logits: mx.array, route: Route) -> _Drawing | None:
        """Choose the next token of every row that goes on; nothing is evaluated. None if no row does."""
        party = rows[0].party
        assert party is not None
        chosen = [
            (row, place, made)
            for row, place in zip(rows, party.places, strict=True)
            if not row.has_ended and (made := _next_draw(row)) is not None
        ]
        if not chosen:
            return None
        if len(chosen) < logits.shape[0]:
            logits = logits[mx.array([place for _, place, _ in chosen])]
        draws = [made for _, _, made in chosen]
        drawn = draw(draws, logits, vectorised=self._options.vectorised_sampling, route=route)
        return _Drawing([row for row, _, _ in chosen], drawn)

    def _settle(self, drawing: _Drawing, *, reads_at_once: bool) -> None:
        """Give rows the tokens that are under way. A row that ended meanwhile has no use for its own."""
        has_first = False
        going = [(index, row) for index, row in enumerate(drawing.rows) if not row.has_ended]
        for index, row in going:
            has_first = has_first or row.num_drawn == 0
            row.num_drawn += 1
            if index in drawing.drawn.failures:
                row.fail(drawing.drawn.failures[index])
            else:
                row.pending = Pending(drawing.drawn, index)
        if reads_at_once or (has_first and self._options.early_first_token):
            self._read([row for _, row in going if row.pending is not None])

    def _seated(self, rows: Sequence[Row], width: int, *, is_shared: bool) -> list[Row]:
        """Seat exactly these rows where they step so many positions; returns them in the order of their seats."""
        is_apart = is_shared and self._stays_apart(rows)
        if self._shared is not None and is_shared and (is_apart or not rows):
            self._shared.keep_only(())
        if not rows:
            return []
        if is_apart or not is_shared:
            for row in rows:
                self._sit_alone(row, width)
            return list(rows)
        if len(rows) > 1:
            for row in rows:
                row.shared_a_step = True
        party = self._party_for(rows)
        party.keep_only(rows)
        for row in rows:
            if row.party is not party:
                if row.party is not None:
                    row.party.leave(row)
                party.join(row)
        party.prepare(width)
        return list(party.rows)

    def _stays_apart(self, rows: Sequence[Row]) -> bool:
        """Whether it is one row, which hasn't met any company yet and needs no bay until it does."""
        return len(rows) == 1 and not rows[0].shared_a_step and self._forwarding.keeps_lone_rows_apart

    def _party_for(self, rows: Sequence[Row]) -> Party:
        if self._shared is None:
            self._shared = self._forwarding.shared_party(rows[0].state)
        return self._shared

    def _sit_alone(self, row: Row, width: int) -> None:
        if row.party is None:
            Party(LoopGroup(self._layout)).join(row)
        assert row.party is not None
        row.party.prepare(width)


def _next_draw(row: Row) -> Draw | None:
    """What to draw for the row; None if its constraint can't say what may come, which fails it alone."""
    try:
        return Draw(row.sampler, row.num_drawn, row.history, row.mask)
    except Exception as error:
        row.fail(error)
        return None


def _inputs(rows: Sequence[Row], party: Party) -> mx.array:
    """(B, 1) ids of the next step, without waiting for those that are still on the device."""
    by_row = _inputs_of(rows)
    if party.is_full:
        return by_row
    # Any id will do for an empty seat.
    return by_row[mx.array(party.spread(range(len(rows)), 0))]


def _inputs_of(rows: Sequence[Row]) -> mx.array:
    """(M, 1) ids."""
    drawn = in_one_batch(rows)
    if drawn is not None:
        return mx.expand_dims(drawn.tokens, 1)
    if all(row.pending is None for row in rows):
        return mx.array([[row.input_id] for row in rows], dtype=mx.int32)
    return mx.concatenate([_input(row) for row in rows])[:, None]


def _input(row: Row) -> mx.array:
    if row.pending is None:
        return mx.array([row.input_id], dtype=mx.int32)
    return row.pending.drawn.tokens[row.pending.index : row.pending.index + 1].astype(mx.int32)


def _hoards() -> bool:
    """Whether MLX's allocator keeps enough freed memory to be asked for it."""
    return mx.get_cache_memory() >= LEAST_HOARD_BYTES
