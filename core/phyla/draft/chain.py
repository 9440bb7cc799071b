"""Drafts of several rows, one after the other: what drafters that draw their proposals have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import mlx.core as mx

from phyla.draft.span import Span
from phyla.request import SamplingParams
from phyla.sampling.sampler import Draw, RowSampler, draw_tokens, flatten

if TYPE_CHECKING:
    from phyla.draft.span import RowProposal


class Chain:
    """Draws each row's drafts as its target would: bias, penalties, filters and random stream are the row's own.

    Ids stay on the device until `spans`, so that a whole chain is one evaluation. What needs them on the host isn't
    applied: named processors and constraints.

    Args:
        rows: each wants at least one draft.
        vocab_size: ids that the target has logits for.
    """

    def __init__(self, rows: Sequence[RowProposal], vocab_size: int) -> None:
        self._rows = rows
        self._vocab_size = vocab_size
        self._greedy = RowSampler(SamplingParams(), vocab_size, seed=0)
        self._chosen: list[mx.array] = []
        self._drawn_from: list[list[mx.array | None]] = []

    @property
    def is_complete(self) -> bool:
        return len(self._chosen) == max(row.room for row in self._rows)

    @property
    def ids(self) -> mx.array:
        """(B, 1) int32: the last drafts, the next step's input."""
        return self._chosen[-1][:, None]

    @property
    def num_real(self) -> tuple[int, ...]:
        """1 for each row that wants a further draft."""
        return tuple(int(len(self._chosen) < row.room) for row in self._rows)

    def draw(self, logits: mx.array) -> None:
        """The next draft of every row.

        Args:
            logits: (B, V of the drafter): cut or padded to the target's, whose draws are over as many ids.
        """
        draws = [Draw(row.sampler or self._greedy, row.step + len(self._chosen)) for row in self._rows]
        drawn = draw_tokens(draws, self._processed(self._fitted(logits)))
        self._chosen.append(drawn.tokens)
        self._drawn_from.append(
            [_drawn_from(draw, drawn.logprobs[place : place + 1]) for place, draw in enumerate(draws)]
        )

    def spans(self, source: str) -> list[Span]:
        """What was drafted for each row, on the host."""
        ids = cast(list[list[int]], mx.stack(self._chosen, axis=1).tolist())
        return [
            Span(
                tuple(ids[place][: row.room]),
                source=source,
                draft_logits=_joined([of_step[place] for of_step in self._drawn_from[: row.room]]),
            )
            for place, row in enumerate(self._rows)
        ]

    def _processed(self, logits: mx.array) -> mx.array:
        samplers = [row.sampler or self._greedy for row in self._rows]
        if not any(sampler.changes_drafts for sampler in samplers):
            return logits
        drafted = mx.stack(self._chosen, axis=1).astype(mx.int32) if self._chosen else None
        return mx.concatenate(
            [
                sampler.process_draft(
                    row.history, None if drafted is None else drafted[place], logits[place : place + 1]
                )
                for place, (sampler, row) in enumerate(zip(samplers, self._rows, strict=True))
            ]
        )

    def _fitted(self, logits: mx.array) -> mx.array:
        num_missing = self._vocab_size - logits.shape[-1]
        if num_missing <= 0:
            return logits[:, : self._vocab_size]
        return mx.pad(logits, [(0, 0), (0, num_missing)], constant_values=mx.array(-mx.inf, dtype=logits.dtype))


def _drawn_from(draw: Draw, logprobs: mx.array) -> mx.array | None:
    """(1, V) what a draft was drawn from; None where it is the drafter's one and only choice."""
    sampler = draw.sampler
    if sampler.sampler is not None or sampler.filters.is_greedy:
        return None
    return flatten(sampler.filters, [draw], logprobs)[0]


def _joined(rows: Sequence[mx.array | None]) -> mx.array | None:
    present = [one for one in rows if one is not None]
    return mx.concatenate(present) if present else None
