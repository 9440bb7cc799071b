"""The provider: one index per row, no state that travels with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from phyla import DraftFacts, DraftProvider, Observed, Span

from phyla_ngram.index import SuffixIndex

if TYPE_CHECKING:
    from phyla import LayerState, Request, SpanSource

    from phyla_ngram.settings import NgramSettings


class NgramProvider(DraftProvider):
    """Opens sources that look up what they propose."""

    def __init__(self, facts: DraftFacts, settings: NgramSettings) -> None:
        self.facts = facts
        self._settings = settings

    def open(self, request: Request, states: Sequence[LayerState]) -> SpanSource:
        settings = self._settings
        return NgramSource(SuffixIndex(settings.shortest_match, settings.longest_match, settings.indexed_tokens))


class NgramSource:
    """Looks at a row's history; what became of a window shows there, so there is nothing to roll back."""

    def __init__(self, index: SuffixIndex) -> None:
        self._index = index

    def propose(self, history: Sequence[int], room: int) -> Span | None:
        self._index.extend(history)
        drafts = tuple(self._index.continuation(history, room))
        return Span(drafts, source="ngram") if drafts else None

    def observe(self, step: Observed) -> None:
        """The next `propose` brings the whole history."""
