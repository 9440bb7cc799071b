"""The drafter's forwards: prompts row by row, proposals for all rows of a round together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import mlx.core as mx
from phyla import DraftFacts, DraftProvider, SamplingParams, Span, StepInput
from phyla.kv.group import looped
from phyla.sampling.sampler import Draw, RowSampler, draw_tokens, flatten

from phyla_twomodel.source import TwoModelSource

if TYPE_CHECKING:
    from phyla import LayerSpec, LayerState, ModelBinding, Request, RowProposal, SpanSource

CHUNK_TOKENS = 512
WIDEST_CATCH_UP = 8
"""Unread tokens that a row may bring into the first forward of a round; with more it reads them before, by itself,
so that the other rows aren't padded to it."""


class TwoModelProvider(DraftProvider):
    """A drafter that is a model.

    Args:
        facts: as the method describes the drafter.
        drafter: bound on this thread.
        vocab_size: ids that the target has logits for.
        new_state: an empty state of one of the drafter's layers.
    """

    def __init__(
        self, facts: DraftFacts, drafter: ModelBinding, vocab_size: int, new_state: Callable[[LayerSpec], LayerState]
    ) -> None:
        self.facts = facts
        self._drafter = drafter
        self._vocab_size = vocab_size
        self._new_state = new_state
        self._greedy = RowSampler(SamplingParams(), vocab_size, seed=0)

    def new_states(self) -> list[LayerState]:
        return [self._new_state(layer) for layer in self.facts.layout if layer.owns_state]

    def open(self, request: Request, states: Sequence[LayerState]) -> SpanSource:
        return TwoModelSource(self, request.rendered.ids, states)

    def read(self, source: TwoModelSource, ids: Sequence[int]) -> None:
        """Append tokens that are certain, chunk by chunk; stops where the drafter's context ends."""
        ids = ids[: max(0, self._drafter.facts.context_limit - source.num_read)]
        for start in range(0, len(ids), CHUNK_TOKENS):
            states = looped(self.facts.layout, [source.states])
            self._forward([source], [ids[start : start + CHUNK_TOKENS]], states)
            owned = [state for layer, state in zip(self.facts.layout, states, strict=True) if layer.owns_state]
            mx.eval([array for state in owned for array in state.evaluate()])

    def propose(self, rows: Sequence[RowProposal]) -> list[Span | None]:
        spans: list[Span | None] = [None] * len(rows)
        able = [place for place, row in enumerate(rows) if self._has_room(row)]
        if able:
            for place, span in zip(able, self._drafted([rows[place] for place in able]), strict=True):
                spans[place] = span
        return spans

    def _has_room(self, row: RowProposal) -> bool:
        return len(row.history) + row.room <= self._drafter.facts.context_limit

    def _drafted(self, rows: Sequence[RowProposal]) -> list[Span]:
        """One forward per draft for all rows; ids stay on the device until the last."""
        sources = [cast(TwoModelSource, row.source) for row in rows]
        fed: list[Sequence[int]] = [
            self._unread(source, row.history) for source, row in zip(sources, rows, strict=True)
        ]
        for source, row, known in zip(sources, rows, fed, strict=True):
            source.begin(known, row.room)
        states = looped(self.facts.layout, [source.states for source in sources])
        logits = self._forward(sources, fed, states)
        chosen: list[mx.array] = []
        drawn_from: list[list[mx.array | None]] = []
        for position in range(max(row.room for row in rows)):
            if position:
                num_real = tuple(int(position < row.room) for row in rows)
                logits = self._step(sources, chosen[-1][:, None], num_real, states)
            draws = [Draw(row.sampler or self._greedy, row.step + position) for row in rows]
            drawn = draw_tokens(draws, logits)
            chosen.append(drawn.tokens)
            drawn_from.append(
                [_drawn_from(draw, drawn.logprobs[place : place + 1]) for place, draw in enumerate(draws)]
            )
        ids = cast(list[list[int]], mx.stack(chosen, axis=1).tolist())
        return [
            self._span(source, ids[place][: row.room], [one[place] for one in drawn_from[: row.room]])
            for place, (source, row) in enumerate(zip(sources, rows, strict=True))
        ]

    def _unread(self, source: TwoModelSource, history: Sequence[int]) -> Sequence[int]:
        unread = history[source.num_read :]
        if len(unread) > WIDEST_CATCH_UP:
            self.read(source, unread[:-1])
            return unread[-1:]
        return unread

    def _span(self, source: TwoModelSource, drafts: Sequence[int], drawn_from: Sequence[mx.array | None]) -> Span:
        source.drafted(drafts)
        logits = [one for one in drawn_from if one is not None]
        return Span(tuple(drafts), source="two-model", draft_logits=mx.concatenate(logits) if logits else None)

    def _forward(self, sources: Sequence[TwoModelSource], rows: Sequence[Sequence[int]], states: list[Any]) -> mx.array:
        """(B, V) logits after the last of each row's ids."""
        width = max(len(ids) for ids in rows)
        # An id that only the target has can't be looked up; which one stands in for it only moves acceptance.
        last = self._drafter.facts.vocab_size - 1
        padded = [[*(min(one, last) for one in ids), *[0] * (width - len(ids))] for ids in rows]
        return self._step(sources, mx.array(padded, dtype=mx.int32), tuple(len(ids) for ids in rows), states)

    def _step(
        self, sources: Sequence[TwoModelSource], ids: mx.array, num_real: tuple[int, ...], states: list[Any]
    ) -> mx.array:
        step = StepInput(
            ids=ids,
            num_real=num_real,
            offsets=tuple(source.num_read for source in sources),
            route="exact" if len(sources) == 1 else "fast",
        )
        hidden = self._drafter.forward(step, states).hidden
        return self._in_targets_vocabulary(self._drafter.head(hidden)[0])

    def _in_targets_vocabulary(self, logits: mx.array) -> mx.array:
        """(B, V) of the target: its random stream draws from as many ids."""
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
