"""What the engine thread does, one unit of work at a time: take mail, admit, compute, tell."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from phyla.engine import endings
from phyla.engine.ahead import AheadCounts
from phyla.engine.compiled_step import CompiledCounts
from phyla.engine.counters import Counters
from phyla.engine.mailbox import Mailbox
from phyla.engine.opening import RowOpener
from phyla.engine.records import StepFinished
from phyla.engine.row import Row
from phyla.engine.runner import Runner
from phyla.engine.scheduler import DecodeRound, Job, PrefillPiece, RowKey, Scheduler
from phyla.engine.services import Services
from phyla.request import EngineEvent, Failed, Finished, Request, Started, Token

if TYPE_CHECKING:
    from phyla.model.step import Route

_log = logging.getLogger(__name__)


@dataclass
class _Open:
    """A request that hasn't ended in all its samples."""

    request: Request
    ended: set[int] = field(default_factory=set)

    def unended(self) -> Iterator[int]:
        return (sample for sample in range(self.request.num_samples) if sample not in self.ended)


class EngineLoop:
    """Drives the scheduler and the runner. Not thread-safe, and without a thread of its own."""

    def __init__(self, scheduler: Scheduler, runner: Runner, mailbox: Mailbox, services: Services) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._mailbox = mailbox
        self._services = services
        self._opener = RowOpener(services)
        self._rows: dict[RowKey, Row] = {}
        self._open: dict[str, _Open] = {}
        self._events: list[EngineEvent] = []
        self._gone: list[str] = []
        self._counted = Counters()
        self.counters = self._counted
        """Replaced after every unit of work; any thread may read it."""

    @property
    def ahead_counts(self) -> AheadCounts:
        """Of windows that were started ahead; any thread may read it."""
        return self._runner.ahead_counts

    @property
    def compiled_counts(self) -> CompiledCounts:
        """Of traced steps; any thread may read it."""
        return self._runner.compiled_counts

    def close(self) -> None:
        """Nothing more will be computed on this thread."""
        self._runner.close()
        self._services.trace.close()

    def iterate(self) -> bool:
        """One unit of work.

        Returns:
            False if there was nothing to compute: sleep until there is mail.
        """
        self._take_mail()
        self._admit()
        work = self._scheduler.next_work()
        if isinstance(work, PrefillPiece):
            self._prefill(work)
        elif isinstance(work, DecodeRound):
            self._decode(work)
        self._deliver()
        return work is not None

    def _take_mail(self) -> None:
        delivery = self._mailbox.collect()
        # Before any request: some were given the places of these in the queue.
        for request_id in delivery.cancelled:
            self._cancel(request_id)
        for request in delivery.requests:
            self._open[request.request_id] = _Open(request)
            self._count(num_submitted=1)
            if request.request_id in delivery.cancelled:
                self._cancel(request.request_id)
            else:
                self._scheduler.enqueue(self._job(request))
        if delivery.calls:
            self._runner.drop_ahead()
        for work, future in delivery.calls:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except Exception as error:
                    future.set_exception(error)

    def _job(self, request: Request) -> Job:
        return Job(
            request_id=request.request_id,
            num_prompt=len(request.rendered.ids),
            num_samples=request.num_samples,
            chunk_tokens=self._services.chunk_tokens,
            projected_bytes=self._services.admission.projected_bytes(request),
            is_solo=self._services.is_solo(request),
            atomic_spans=tuple((span.start, span.start + span.num_tokens) for span in request.rendered.media),
        )

    def _cancel(self, request_id: str) -> None:
        opened = self._open.get(request_id)
        if opened is None:
            return
        self._scheduler.drop_waiting(request_id)
        for key in self._scheduler.rows_of(request_id):
            self._rows[key].reason = "cancelled"
            self._finish(self._rows[key])
        for sample in list(opened.unended()):
            self._end(opened, endings.never_began(opened.request, sample))

    def _admit(self) -> None:
        while (job := self._scheduler.admit(self._waits_for_another)) is not None:
            opened = self._open[job.request_id]
            self._runner.drop_ahead()
            self._mailbox.left_queue(job.request_id)
            try:
                row = self._opener.open(opened.request)
            except Exception as error:
                self._scheduler.leave(RowKey(job.request_id))
                self._fail_rest(opened, error)
                continue
            self._rows[row.key] = row
            self._events.append(Started(job.request_id, job.num_prompt, row.num_cached))
            self._count(num_prompt_tokens=job.num_prompt, num_cached_tokens=row.num_cached)
            self._services.trace.admitted(opened.request, row.num_cached)
            self._fork(row, self._scheduler.resume(job.request_id, row.num_cached))

    def _waits_for_another(self, job: Job) -> bool:
        """What goes wrong here goes wrong again when the request is opened, and fails it there."""
        try:
            return self._services.reuse.waits(self._open[job.request_id].request)
        except Exception:
            return False

    def _fork(self, row: Row, keys: Sequence[RowKey]) -> None:
        """Give the further samples of a request, if it has any, rows of their own."""
        for key in keys:
            if key == row.key:
                continue
            try:
                self._rows[key] = self._opener.fork(row, key)
            except Exception as error:
                self._scheduler.leave(key)
                self._end(self._open[key.request_id], endings.failed(key.request_id, key.sample, error))

    def _prefill(self, piece: PrefillPiece) -> None:
        row = self._rows[piece.row]
        before = self._services.now()
        try:
            row.is_exact = row.is_exact and piece.route == "exact"
            if piece.is_new:
                self._services.reuse.begin_chunk(row.request, row.state, piece.num_tokens)
            is_through = self._runner.prefill(row, piece)
            if is_through:
                self._services.reuse.publish_chunk(row.request, row.state, is_exact=row.is_exact)
        except Exception as error:
            row.fail(error)
            opened = self._open[piece.row.request_id]
            self._finish(row)
            self._fail_rest(opened, error)
            return
        seconds = self._services.now() - before
        self._scheduler.pace.prefilled(piece.num_tokens, piece.num_layers, seconds)
        self._services.trace.prefilled(piece, seconds)
        if is_through:
            if self._services.trace.wants("memory"):
                self._services.trace.chunk_memory(piece.row.request_id, *self._runner.memory())
            self._count(num_prefilled_tokens=piece.num_tokens)
            self._services.tell(StepFinished("prefill", 1, piece.num_tokens, seconds))
            self._fork(row, self._scheduler.advanced(piece.row))

    def _decode(self, work: DecodeRound) -> None:
        before = self._services.now()
        if work.shared:
            self._step(work.shared, "fast", work)
        for key in work.alone:
            self._step((key,), "exact", work)
        self._scheduler.pace.decoded(self._services.now() - before)
        self._services.reuse.make_room()

    def _step(self, keys: Sequence[RowKey], route: Route, work: DecodeRound) -> None:
        rows = [self._rows[key] for key in keys]
        before = self._services.now()
        is_shared = keys is work.shared
        stepped = self._runner.step(
            rows,
            route,
            is_shared=is_shared,
            reads_at_once=work.is_before_prefill,
            is_followed=work.is_before_prefill or (is_shared and bool(work.alone)),
        )
        seconds = self._services.now() - before
        self._count(num_steps=1, num_shared_steps=int(len(rows) > 1), num_stacked_steps=int(stepped.group == "stacked"))
        self._services.tell(StepFinished(stepped.kind, len(rows), stepped.num_tokens, seconds))
        self._services.trace.stepped(rows, route, seconds)
        for row in rows:
            row.is_exact = row.is_exact and route == "exact"
            if route == "exact" and stepped.num_tokens > 1 and self._runner.traces_alone(row):
                # A window has given up the bits that the exact route is there for, and a trace is faster.
                self._scheduler.leave_exact_route(row.key)
            self._speak(row)

    def _speak(self, row: Row) -> None:
        """Turn what was read into events; text is made here, when everything is dispatched."""
        if row.unsent and row.clock.first_token is None:
            row.clock.first_token = self._services.now()
        num_said = None
        try:
            for index, (token_id, logprobs) in enumerate(row.unsent):
                self._events.extend(row.answer.add(token_id, logprobs))
                if row.answer.stop_string is not None:
                    row.reason, row.error = "stop", None
                    # What a window brought after the stop string was never said.
                    num_said = index + 1
                    row.num_emitted -= len(row.unsent) - num_said
                    break
        except Exception as error:
            row.reason, row.error = None, error
        row.unsent.clear()
        if row.proposers is not None:
            row.proposers.count(num_said)
        if row.has_ended:
            self._finish(row)

    def _finish(self, row: Row) -> None:
        """The row ends: its place is free at once, its last event is on its way."""
        is_whole = row.chunk is None and row.num_computed == row.state.num_tokens
        self._scheduler.leave(row.key)
        del self._rows[row.key]
        self._runner.leave(row)
        if row.proposers is not None:
            usage = row.proposers.usage
            self._count(
                num_drafted=usage.num_drafted,
                num_drafts_accepted=usage.num_accepted,
                num_draft_rounds=usage.num_rounds,
                num_draft_tokens=usage.num_emitted,
                num_undrafted_rows=int(usage.reason is not None),
            )
        text = self._flush(row)
        opened = self._open[row.key.request_id]
        if row.error is not None:
            self._end(opened, endings.failed(row.key.request_id, row.key.sample, row.error))
            return
        if is_whole:
            self._publish(row)
        self._end(opened, endings.finished(row, text, self._services.now()))

    def _flush(self, row: Row) -> str:
        """Send what the row's answer held back; returns the text that belongs to none of its tokens."""
        if row.error is not None or row.answer.stop_string is not None:
            return ""
        try:
            ending = row.answer.finish(is_cut=row.reason == "length")
        except Exception as error:
            row.reason, row.error = None, error
            return ""
        self._events.extend(ending.events)
        return ending.text

    def _publish(self, row: Row) -> None:
        """Give the row's state away. The answer is whole, so what goes wrong here is nobody's failure."""
        try:
            self._services.reuse.publish_end(row.request, row.state, is_exact=row.is_exact)
        except Exception:
            _log.exception("A finished row couldn't be kept for later prompts.")

    def _fail_rest(self, opened: _Open, error: Exception) -> None:
        """The samples that will never have a row fail with the one that should have led to them."""
        for sample in list(opened.unended()):
            self._end(opened, endings.failed(opened.request.request_id, sample, error))

    def _end(self, opened: _Open, event: Finished | Failed) -> None:
        request_id = opened.request.request_id
        self._events.append(event)
        opened.ended.add(event.sample)
        record = endings.record_of(event)
        self._services.tell(record)
        self._services.trace.ended(request_id, event.sample, record.outcome, record.error)
        if len(opened.ended) == opened.request.num_samples:
            del self._open[request_id]
            self._services.reuse.abandon(opened.request)
            self._gone.append(request_id)
            outcome = record.outcome
            self._count(num_finished=1, num_failed=int(outcome == "failed"), num_cancelled=int(outcome == "cancelled"))

    def _deliver(self) -> None:
        """One call for the events of all rows. A request counts as gone before its end is heard of."""
        events, self._events = self._events, []
        for request_id in self._gone:
            self._mailbox.gone(request_id)
        self._gone.clear()
        self._count(num_emitted_tokens=sum(isinstance(event, Token) for event in events))
        self._publish_counters()
        if events:
            self._services.emit(events)

    def _count(self, **changes: int) -> None:
        self._counted = self._counted.add(**changes)

    def _publish_counters(self) -> None:
        self.counters = self._counted.add(
            active_rows=self._scheduler.num_rows,
            waiting=self._scheduler.num_waiting,
            projected_bytes=self._scheduler.projected_bytes,
        )
