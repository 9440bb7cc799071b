"""One row on the engine thread: everything that belongs to a request's sample, and to nobody else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from phyla.draft.span import Observed
from phyla.engine.answer import Answer
from phyla.engine.scheduler import RowKey
from phyla.request import FinishReason, Request, TokenLogprobs

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from phyla.draft.constraint import Constraint
    from phyla.engine.drawn import Drawn
    from phyla.engine.party import Party
    from phyla.engine.proposing import RowProposers
    from phyla.kv.row_state import RowState
    from phyla.model.binding import Forward
    from phyla.sampling.sampler import RowSampler


@dataclass
class Chunk:
    """A prefill chunk on its way through the layers."""

    forward: Forward
    ids: tuple[int, ...]


@dataclass
class Pending:
    """A drawn token that the host hasn't read yet."""

    drawn: Drawn
    index: int
    is_forwarded: bool = False
    """Its own step was built already, so the state holds it."""


@dataclass
class Clock:
    """When what happened, in seconds of the engine's clock."""

    admitted: float
    first_token: float | None = None


@dataclass
class Row:
    """See the module. `history` is the prompt and every token that was read; `state` is what was computed."""

    key: RowKey
    request: Request
    state: RowState
    sampler: RowSampler
    answer: Answer
    eos_ids: frozenset[int]
    clock: Clock
    constraint: Constraint | None = None
    proposers: RowProposers | None = None
    num_cached: int = 0
    history: list[int] = field(default_factory=list)
    num_drawn: int = 0
    """Tokens drawn for this row, read or not: the step of its random stream."""

    num_emitted: int = 0
    num_computed: int = 0
    """Tokens whose forward was built: the position of the next input."""

    chunk: Chunk | None = None
    pending: Pending | None = None
    party: Party | None = None
    """With whom it steps, once it does."""

    shared_a_step: bool = False
    is_exact: bool = True
    """Everything in its state was computed on the exact route."""

    reason: FinishReason | None = None
    error: Exception | None = None
    unsent: list[tuple[int, TokenLogprobs | None]] = field(default_factory=list)
    """Tokens that were read and still have to go through `answer`."""

    @property
    def max_tokens(self) -> int:
        assert self.request.max_tokens is not None, "settled by admission"
        return self.request.max_tokens

    @property
    def has_ended(self) -> bool:
        return self.reason is not None or self.error is not None

    @property
    def wants_step(self) -> bool:
        """Whether another forward is needed: not if the last token it may have was drawn already."""
        return not self.has_ended and self.num_drawn < self.max_tokens

    @property
    def input_id(self) -> int:
        """The next input, where it is known on the host."""
        assert self.pending is None, "the next input is still on the device"
        return self.history[self.num_computed]

    @property
    def ending_ids(self) -> frozenset[int]:
        """Ids that end the row."""
        return frozenset() if self.request.sampling.ignore_eos else self.eos_ids

    def wants_round(self, num_rows: int) -> bool:
        """Whether its next step, of so many rows, must be a round of its own rather than one of the pipeline."""
        return self.proposers is not None and self.proposers.wants_round(num_rows, is_unread=self.pending is not None)

    @property
    def draws_by_history(self) -> bool:
        """Whether the next draw depends on tokens that may have to be read first."""
        return self.constraint is not None or self.sampler.needs_history

    @property
    def looks_at_every_step(self) -> bool:
        """Whether every step has to be waited for, since something proposes from its hidden rows."""
        return self.proposers is not None and self.proposers.looks_at_every_step

    @property
    def mask(self) -> npt.NDArray[np.int32] | None:
        """What may come next, where something restricts it."""
        return None if self.constraint is None else self.constraint.mask()

    def take(self, token_id: int, logprobs: TokenLogprobs | None) -> None:
        """A drawn token arrived on the host."""
        assert self.pending is not None
        self.history.append(token_id)
        if self.pending.is_forwarded:
            self.note_computed(token_id)
        self.pending = None
        is_end = token_id in self.ending_ids
        if self.proposers is not None:
            self.proposers.stepped_plainly(self.history, num_emitted=0 if is_end else 1)
        if is_end:
            self.reason = "stop"
            return
        if self.constraint is not None:
            self.constraint.accept(token_id)
        self.num_emitted += 1
        self.unsent.append((token_id, logprobs))
        if self.constraint is not None and self.constraint.is_satisfied:
            self.reason = "stop"
        elif self.num_emitted >= self.max_tokens:
            self.reason = "length"

    def note_computed(self, token_id: int) -> None:
        """A plain step's input is in the state now."""
        self.state.record((token_id,))
        if self.proposers is not None:
            self.proposers.observe(Observed((token_id,), start=self.state.num_tokens - 1))

    def fail(self, error: Exception) -> None:
        """The first failure is the one reported."""
        if not self.has_ended:
            self.error = error


def in_one_batch(rows: Sequence[Row]) -> Drawn | None:
    """The draw whose tokens are exactly these rows' inputs, in order, or None."""
    first = rows[0].pending
    if first is None or first.drawn.num_rows != len(rows):
        return None
    for index, row in enumerate(rows):
        if row.pending is None or row.pending.drawn is not first.drawn or row.pending.index != index:
            return None
    return first.drawn
