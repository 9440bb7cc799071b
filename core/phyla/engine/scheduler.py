"""Decides which tokens of which rows are computed next. Pure Python: it knows no model code and imports no mlx.

A row has computed tokens and wanted tokens; each piece of work closes some of the gap. A prompt is prefilled up to its
last token; that one is the first input of decoding, so a row that is one token short is simply running.

    waiting --admit--> prefilling --last chunk--> running --leave--> gone
                                        \\--> ready (further samples of one request) --a place is free--> running
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from phyla.engine.chunks import COMPANY_CHUNK, chunk_end
from phyla.engine.pace import Pace
from phyla.errors import QueueFull

if TYPE_CHECKING:
    from phyla.model.step import Route
    from phyla.plan import RouteOption

SHORTEST_SHARE = 3
"""Of prefill work, for the shortest prompt, for each part that the oldest gets."""


class RowKey(NamedTuple):
    """One row: a request, and which of its samples."""

    request_id: str
    sample: int = 0


class Phase(enum.Enum):
    PREFILLING = "prefilling"
    READY = "ready"
    """Prefilled, waiting for a place among the running."""

    RUNNING = "running"


@dataclass(frozen=True)
class Limits:
    """What the scheduler must keep to."""

    max_rows: int = 8
    max_waiting: int = 64
    num_layers: int = 1
    step_seconds: float = 0.05
    route: RouteOption = "auto"
    kv_budget_bytes: int | None = None

    @property
    def is_strict(self) -> bool:
        """Rows keep to the exact route whatever the company."""
        return self.route == "exact" or (self.max_rows == 1 and self.route == "auto")


@dataclass(frozen=True)
class Job:
    """One request as the scheduler sees it."""

    request_id: str
    num_prompt: int
    num_samples: int = 1
    chunk_tokens: int = 2048
    projected_bytes: int = 0
    """Of all its samples, at their longest."""

    is_solo: bool = False
    """Never shares a step with other rows."""

    atomic_spans: tuple[tuple[int, int], ...] = ()


def nobody_is_held(job: Job) -> bool:
    """Every job may be admitted as soon as there is room."""
    return False


@dataclass
class _Seat:
    key: RowKey
    job: Job
    phase: Phase
    route: Route
    num_computed: int = 0
    chunk: int = 0
    """Tokens of the chunk under way; 0 between chunks."""

    @property
    def gap(self) -> int:
        """Tokens still to be prefilled; the prompt's last one is left for the first decode step."""
        return self.job.num_prompt - 1 - self.num_computed


@dataclass(frozen=True)
class PrefillPiece:
    """Some layers of one chunk of one row."""

    row: RowKey
    start: int
    num_tokens: int
    """Tokens of the chunk."""

    num_layers: int
    """Layers to advance it by at most."""

    route: Route
    is_new: bool
    """The chunk begins with this piece."""


@dataclass(frozen=True)
class DecodeRound:
    """One decode step for every running row."""

    shared: tuple[RowKey, ...] = ()
    """Rows of one common step on the fast route."""

    alone: tuple[RowKey, ...] = ()
    """Rows that each step by themselves on the exact route."""

    is_before_prefill: bool = False
    """A piece of prefill comes next: tokens shouldn't wait for it, nor the step's time be charged to it."""


Work = PrefillPiece | DecodeRound


@dataclass
class Scheduler:
    """See the module. Not thread-safe: it belongs to the engine thread."""

    limits: Limits
    pace: Pace = field(default_factory=Pace)
    _waiting: deque[Job] = field(default_factory=deque)
    _seats: dict[RowKey, _Seat] = field(default_factory=dict)
    """In the order of admission."""

    _decode_is_due: bool = False
    _shortest_lead: int = 0
    """Token-layers that the shortest prompts have been given beyond their share."""

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_active(self) -> int:
        """Rows that hold one of the `max_rows` places."""
        return sum(seat.phase is not Phase.READY for seat in self._seats.values())

    @property
    def num_rows(self) -> int:
        return len(self._seats)

    @property
    def projected_bytes(self) -> int:
        """What all admitted requests may come to hold."""
        jobs = {seat.key.request_id: seat.job for seat in self._seats.values()}
        return sum(job.projected_bytes for job in jobs.values())

    def enqueue(self, job: Job) -> None:
        """Put a request at the end of the queue.

        Raises:
            QueueFull: `max_waiting` requests are waiting already.
        """
        if len(self._waiting) >= self.limits.max_waiting:
            raise QueueFull(
                f"{len(self._waiting)} requests are waiting already, as many as are allowed. Try again later."
            )
        self._waiting.append(job)

    def admit(self, is_held: Callable[[Job], bool] = nobody_is_held) -> Job | None:
        """Take in the first that waits, if a place is free and its bytes fit: first come, first served.

        Args:
            is_held: whether a job has to wait longer for a reason of its own; those behind it go first then. Not asked
                while there is no room.
        """
        for job in self._waiting:
            if not self._has_room(job):
                return None
            if is_held(job):
                continue
            self._waiting.remove(job)
            key = RowKey(job.request_id)
            self._seats[key] = _Seat(key, job, Phase.PREFILLING, self._first_route(job))
            return job
        return None

    def resume(self, request_id: str, num_cached: int) -> list[RowKey]:
        """The first `num_cached` prompt tokens of an admitted request need no computing.

        Must be called once per admission, with 0 where nothing is cached. Returns as `advanced` does.
        """
        seat = self._seats[RowKey(request_id)]
        assert 0 <= num_cached < seat.job.num_prompt, "at least one token is always computed"
        seat.num_computed = num_cached
        return self._settle(seat)

    def advanced(self, row: RowKey) -> list[RowKey]:
        """The chunk under way went through all layers.

        Returns:
            Every sample of the request once its prefill is over (the others are copies of the first), else nothing.
        """
        seat = self._seats[row]
        seat.num_computed += seat.chunk
        seat.chunk = 0
        return self._settle(seat)

    def leave_exact_route(self, key: RowKey) -> None:
        """The row has no bits to keep any more: from now on it is on the fast route, unless a setting forbids that."""
        self._cross(self._seats[key])

    def leave(self, row: RowKey) -> None:
        """The row is done, whatever the reason; its place is free at once. Unknown rows pass."""
        self._seats.pop(row, None)

    def drop_waiting(self, request_id: str) -> bool:
        """Take a request out of the queue; whether it was in it."""
        for job in self._waiting:
            if job.request_id == request_id:
                self._waiting.remove(job)
                return True
        return False

    def rows_of(self, request_id: str) -> list[RowKey]:
        """The rows that a request has among the admitted."""
        return [key for key in self._seats if key.request_id == request_id]

    def next_work(self) -> Work | None:
        """What to compute now; None when there is nothing to do.

        Pieces of prefill and decode rounds alternate where both are wanted, so that neither starves.
        """
        self._seat_ready_rows()
        prefilling = [seat for seat in self._seats.values() if seat.phase is Phase.PREFILLING]
        running = [seat for seat in self._seats.values() if seat.phase is Phase.RUNNING]
        if prefilling and not (running and self._decode_is_due):
            self._decode_is_due = True
            return self._next_piece(prefilling, has_running=bool(running))
        # After plain decoding a newcomer's first piece waits for one more round, whose tokens are read at once.
        self._decode_is_due = not prefilling
        return self._round(running, is_before_prefill=bool(prefilling)) if running else None

    def _has_room(self, job: Job) -> bool:
        if self.num_active >= self.limits.max_rows or any(self._ready()):
            return False
        budget = self.limits.kv_budget_bytes
        return budget is None or not self._seats or self.projected_bytes + job.projected_bytes <= budget

    def _first_route(self, job: Job) -> Route:
        return "fast" if self.limits.route == "fast" and not job.is_solo else "exact"

    def _ready(self) -> Iterator[_Seat]:
        return (seat for seat in self._seats.values() if seat.phase is Phase.READY)

    def _seat_ready_rows(self) -> None:
        for seat in list(self._ready())[: max(0, self.limits.max_rows - self.num_active)]:
            seat.phase = Phase.RUNNING

    def _settle(self, seat: _Seat) -> list[RowKey]:
        """Let a row without a gap run, and give its further samples rows of their own."""
        if seat.gap > 0:
            return []
        seat.phase = Phase.RUNNING
        keys = [seat.key]
        for sample in range(1, seat.job.num_samples):
            key = RowKey(seat.key.request_id, sample)
            self._seats[key] = _Seat(key, seat.job, Phase.READY, seat.route, num_computed=seat.num_computed)
            keys.append(key)
        return keys

    def _next_piece(self, prefilling: Sequence[_Seat], *, has_running: bool) -> PrefillPiece:
        """The prompt with the smallest gap gets three quarters of the work, the oldest the rest: short ones get by and
        then step together, long ones don't starve. By work, not by turns: one layer of a chunk that was begun alone may
        be as much as all of a short prompt.
        """
        oldest, shortest = prefilling[0], min(prefilling, key=lambda seat: seat.gap)
        if oldest is shortest:
            return self._piece(oldest, has_running=has_running)
        is_oldests_turn = self._shortest_lead > 0
        piece = self._piece(oldest if is_oldests_turn else shortest, has_running=has_running)
        # A few tokens cost what many do: the weights have to be read for them, too.
        work = max(piece.num_tokens, COMPANY_CHUNK) * min(piece.num_layers, self.limits.num_layers)
        self._shortest_lead += -SHORTEST_SHARE * work if is_oldests_turn else work
        return piece

    def _piece(self, seat: _Seat, *, has_running: bool) -> PrefillPiece:
        budget = self.pace.budget_seconds(self.limits.step_seconds, has_running)
        is_new = seat.chunk == 0
        self._meet_company(seat)
        if is_new:
            seat.chunk = self._next_chunk(seat, budget)
        layers = self.pace.layers_within(budget, seat.chunk)
        return PrefillPiece(seat.key, seat.num_computed, seat.chunk, layers, seat.route, is_new)

    def _next_chunk(self, seat: _Seat, budget_seconds: float) -> int:
        """In company one layer has to fit: the layers of a chunk are spread over several pieces before the chunk is cut
        further, since a large one reads the weights less often.
        """
        wanted = seat.job.chunk_tokens
        if seat.route == "fast" and self._num_shared() > 1:
            within = self.pace.tokens_within(budget_seconds)
            wanted = min(wanted, max(COMPANY_CHUNK, _power_of_two_within(within or COMPANY_CHUNK)))
        end = chunk_end(seat.num_computed, wanted, seat.job.num_prompt - 1, seat.job.atomic_spans)
        return end - seat.num_computed

    def _round(self, running: Sequence[_Seat], *, is_before_prefill: bool) -> DecodeRound:
        for seat in running:
            self._meet_company(seat)
        return DecodeRound(
            shared=tuple(seat.key for seat in running if seat.route == "fast"),
            alone=tuple(seat.key for seat in running if seat.route == "exact"),
            is_before_prefill=is_before_prefill,
        )

    def _num_shared(self) -> int:
        """Active rows that may share a step."""
        return sum(seat.phase is not Phase.READY and not seat.job.is_solo for seat in self._seats.values())

    def _meet_company(self, seat: _Seat) -> None:
        """Cross from the exact to the fast route when another row is there to share steps with, and never back."""
        if self._num_shared() > 1:
            self._cross(seat)

    def _cross(self, seat: _Seat) -> None:
        if not self.limits.is_strict and not seat.job.is_solo:
            seat.route = "fast"


def _power_of_two_within(number: int) -> int:
    """Few chunk sizes mean few traced shapes."""
    return 1 << (max(1, number).bit_length() - 1)
