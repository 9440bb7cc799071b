"""Makes rows: whatever a request's own wishes can break happens here, and fails that request alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from phyla.draft.after import after
from phyla.draft.opened import unless_opened
from phyla.engine.answer import Answer
from phyla.engine.row import Clock, Row
from phyla.engine.scheduler import RowKey
from phyla.engine.traced_constraint import TracedConstraint
from phyla.sampling.named import row_sampler

if TYPE_CHECKING:
    from phyla.draft.constraint import Constraint
    from phyla.engine.services import Services
    from phyla.request import Request
    from phyla.sampling.sampler import RowSampler


@dataclass(frozen=True)
class RowOpener:
    """On the engine thread."""

    services: Services

    def open(self, request: Request) -> Row:
        """The first row of an admitted request.

        Raises:
            Exception: what a named processor's factory or the allocation of state raised.
        """
        sampler = self._sampler(request, sample=0)
        answer = Answer(request, 0, self.services.tokenizer)
        key = RowKey(request.request_id)
        constraint = self._constraint(request, key)
        resumed = self.services.reuse.resume(request)
        return Row(
            key=key,
            request=request,
            state=resumed.state,
            sampler=sampler,
            answer=answer,
            eos_ids=self.services.eos_ids,
            clock=Clock(self.services.now()),
            constraint=constraint,
            proposers=self.services.proposing.open(request, resumed.state, constraint),
            num_cached=resumed.num_cached,
            is_exact=resumed.is_exact,
            history=list(request.rendered.ids),
            num_computed=resumed.num_cached,
        )

    def fork(self, row: Row, key: RowKey) -> Row:
        """A further sample, going on from where the first one's prefill ended."""
        state = row.state.clone()
        constraint = self._constraint(row.request, key)
        return replace(
            row,
            key=key,
            state=state,
            constraint=constraint,
            proposers=self.services.proposing.open(row.request, state, constraint),
            sampler=self._sampler(row.request, key.sample),
            answer=Answer(row.request, key.sample, self.services.tokenizer),
            clock=Clock(row.clock.admitted),
            history=list(row.history),
            unsent=[],
            party=None,
        )

    def _constraint(self, request: Request, key: RowKey) -> Constraint | None:
        constraint = self._untraced_constraint(request)
        if constraint is None or not self.services.trace.wants("grammar"):
            return constraint
        return TracedConstraint(constraint, key, self.services.trace)

    def _untraced_constraint(self, request: Request) -> Constraint | None:
        """Begins when the reasoning ends: the prompt's, or one that the model opens."""
        services, rendered = self.services, request.rendered
        constraint = services.open_constraint(request)
        if constraint is None or rendered.reasoning is None:
            return constraint
        start, end = (services.tokenizer.encode(spelling) for spelling in rendered.reasoning)
        waiting = after(end, constraint, eos_ids=services.eos_ids, vocab_size=services.facts.vocab_size)
        if rendered.starts_in_reasoning:
            return waiting
        return unless_opened(start, waiting, constraint, vocab_size=services.facts.vocab_size)

    def _sampler(self, request: Request, sample: int) -> RowSampler:
        return row_sampler(
            request,
            vocab_size=self.services.facts.vocab_size,
            eos_ids=self.services.eos_ids,
            named=self.services.samplers,
            sample=sample,
        )
