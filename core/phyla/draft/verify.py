"""The only place where tokens are accepted or rolled back.

A round of one row: `plan` cuts its drafts to what could be accepted and says which positions to draw for; the target
computes `[pending, *drafts]` in a window; `verify` draws a token for every position of all rows in one call; `settle`
walks them, advances the constraint and says what was emitted and how much of the window to keep. A row without drafts
is a window of one, so plain decoding is the same thing. An asserted span stands between the pending token and what is
drawn: `[pending, *context]`, and one draw after it.

Source:
    Exact match: the target draws at each position with the key that plain decoding would use there, so a seed gives
    the same tokens with and without drafts. Rejection: Leviathan et al. 2023, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from phyla.draft.rejection import draw_with_rejection
from phyla.sampling.sampler import Chosen, Draw, RowSampler, checked_token, choose
from phyla.sampling.token_mask import Words, allows

if TYPE_CHECKING:
    import mlx.core as mx

    from phyla.draft.constraint import Constraint
    from phyla.draft.span import Span
    from phyla.model.step import Route

Acceptance = Literal["exact", "rejection"]
Ended = Literal["eos", "stop", "satisfied", "length"]


@dataclass(frozen=True)
class RowRound:
    """Where one row stands when a round begins."""

    sampler: RowSampler
    history: Sequence[int]
    """Prompt and everything emitted; the last one is pending: emitted, not yet computed."""

    step: int
    """Tokens emitted so far."""

    room: int
    """Tokens it may still emit; at least 1."""

    eos_ids: frozenset[int] = frozenset()
    constraint: Constraint | None = None


@dataclass(frozen=True)
class Plan:
    """One row's window."""

    row: RowRound
    tokens: tuple[int, ...]
    """What the target computes: the pending token, then what is left of the span."""

    proposed: tuple[int, ...]
    """As drafts, before any were cut; empty where the span was asserted."""

    draws: tuple[Draw, ...]
    """One per drawn position, the last of the window: `len(drafts) + 1`."""

    draft_logits: mx.array | None = None
    context: tuple[int, ...] = ()
    """Asserted tokens: emitted as they are, without a draw at their positions."""

    @property
    def drafts(self) -> tuple[int, ...]:
        return self.tokens[1 + len(self.context) :]


@dataclass(frozen=True)
class Verdict:
    """What became of one row's window."""

    tokens: tuple[int, ...]
    """Emitted, in order: what was asserted, accepted drafts, then the correction or bonus.

    Each after the asserted ones was drawn, at the position of its index. End of sequence isn't among them.
    """

    num_kept: int
    """Tokens of the window to keep: pending, and every emitted one that another was drawn after."""

    num_drafted: int
    num_accepted: int
    """Drafts that the target agreed on, an end of sequence among them."""

    num_asserted: int = 0
    """Of `tokens`, the first."""

    ended: Ended | None = None
    error: Exception | None = None
    """The row fails alone; what was emitted before stands."""


def plan(row: RowRound, span: Span | None = None) -> Plan:
    """Cut the span and list the positions to draw for. Leaves the constraint as it was.

    A span ends before end of sequence, before an id without a logit, before one that the constraint forbids, after one
    that satisfies it, and where the row's room does.

    Raises:
        ConstraintError: the matcher failed; the row does.
    """
    proposed = () if span is None else span.tokens
    legal, masks = _legal(row, proposed[: row.room])
    is_asserted = span is not None and span.kind == "asserted"
    history = list(row.history) if row.sampler.needs_history and legal else row.history
    draws = tuple(
        Draw(
            row.sampler,
            row.step + position,
            [*history, *legal[:position]] if row.sampler.needs_history and position else history,
            masks[position],
        )
        for position in range(len(legal) if is_asserted else 0, len(legal) + 1)
    )
    tokens = (row.history[-1], *legal)
    if is_asserted:
        return Plan(row, tokens, (), draws, context=legal)
    return Plan(row, tokens, proposed, draws, None if span is None else span.draft_logits)


def verify(
    plans: Sequence[Plan],
    logits: mx.array,
    *,
    acceptance: Acceptance = "exact",
    vectorised: bool = True,
    route: Route = "exact",
) -> Chosen:
    """Draw for every position of every window; nothing is evaluated.

    Args:
        plans: the rows in the order of their logits.
        logits: (M, V), one row per position, M the sum over rows of `len(drafts) + 1`.
        acceptance: `exact` draws as plain decoding would; `rejection` keeps the distribution, not the seed's tokens.
        vectorised: false draws one after the other, for paired runs.
        route: what the logits came by.
    """
    draws = [draw for one in plans for draw in one.draws]
    assert len(draws) == logits.shape[0], "one row of logits per position"
    if acceptance == "rejection" and any(one.proposed for one in plans):
        return draw_with_rejection([(one.draws, one.proposed, one.draft_logits) for one in plans], logits)
    return choose(draws, logits, vectorised=vectorised, route=route)


def settle(
    plan: Plan,
    chosen: Sequence[int],
    *,
    failure: Exception | None = None,
    goes_on: Callable[[int], bool] | None = None,
) -> Verdict:
    """Walk one row's drawn tokens and advance its constraint by what is emitted.

    Args:
        plan: the row's.
        chosen: its drawn tokens on the host, one per drawn position.
        failure: what its first failing position raised, if any.
        goes_on: told each emitted token; false ends the row there (a stop string).
    """
    row = plan.row
    emitted: list[int] = []
    ended: Ended | None = None
    error: Exception | None = None
    for position, drawn in enumerate((*plan.context, *chosen)):
        try:
            token_id = checked_token(drawn)
            if token_id in row.eos_ids:
                ended = "eos"
                break
            if row.constraint is not None:
                row.constraint.accept(token_id)
        except Exception as raised:
            error = failure or raised
            break
        emitted.append(token_id)
        ended = _ending(row, token_id, len(emitted), goes_on)
        if ended or position + 1 == len(plan.tokens) or token_id != plan.tokens[position + 1]:
            break
    return Verdict(
        tokens=tuple(emitted),
        num_kept=position + 1,
        num_drafted=len(plan.proposed),
        num_accepted=_num_agreed(plan, chosen[: len(emitted) + (ended == "eos")]),
        num_asserted=min(len(plan.context), len(emitted)),
        ended=ended,
        error=error,
    )


def _legal(row: RowRound, proposed: Sequence[int]) -> tuple[tuple[int, ...], list[Words | None]]:
    """The tokens that could all be emitted, and the mask of each position, one more than tokens."""
    drafts: list[int] = []
    masks: list[Words | None] = []
    constraint = row.constraint
    num_accepted = 0
    try:
        masks.append(None if constraint is None else constraint.mask())
        for token_id in proposed:
            mask = masks[-1]
            if token_id in row.eos_ids or not 0 <= token_id < row.sampler.vocab_size:
                break
            if constraint is not None:
                if mask is not None and not allows(mask, token_id):
                    break
                constraint.accept(token_id)
                num_accepted += 1
                if constraint.is_satisfied:
                    # The row ends with this token, so the position after it is never looked at.
                    drafts.append(token_id)
                    masks.append(None)
                    break
            drafts.append(token_id)
            masks.append(None if constraint is None else constraint.mask())
    finally:
        if constraint is not None and num_accepted:
            constraint.rollback(num_accepted)
    return tuple(drafts), masks


def _ending(row: RowRound, token_id: int, num_emitted: int, goes_on: Callable[[int], bool] | None) -> Ended | None:
    if goes_on is not None and not goes_on(token_id):
        return "stop"
    if row.constraint is not None and row.constraint.is_satisfied:
        return "satisfied"
    return "length" if num_emitted >= row.room else None


def _num_agreed(plan: Plan, walked: Sequence[int]) -> int:
    """Proposed tokens that were drawn, end of sequence included; a bonus isn't an accepted draft."""
    num_agreed = 0
    for proposed, drawn in zip(plan.proposed, walked, strict=False):
        if proposed != drawn:
            break
        num_agreed += 1
    return num_agreed
