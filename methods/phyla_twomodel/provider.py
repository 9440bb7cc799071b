"""The drafter's forwards: prompts row by row, proposals for all rows of a round together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import mlx.core as mx
from phyla import DraftFacts, DraftProvider, Span, StepInput
from phyla.draft.chain import Chain
from phyla.kv.group import looped

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
        chain = Chain(rows, self._vocab_size)
        chain.draw(self._forward(sources, fed, states))
        while not chain.is_complete:
            chain.draw(self._step(sources, chain.ids, chain.num_real, states))
        spans = chain.spans("two-model")
        for source, span in zip(sources, spans, strict=True):
            source.drafted(span.tokens)
        return spans

    def _unread(self, source: TwoModelSource, history: Sequence[int]) -> Sequence[int]:
        unread = history[source.num_read :]
        if len(unread) > WIDEST_CATCH_UP:
            self.read(source, unread[:-1])
            return unread[-1:]
        return unread

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
        return self._drafter.head(hidden).squeeze(0)
