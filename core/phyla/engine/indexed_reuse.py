"""Prefix reuse through the index: where rows start from, and what they leave behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from phyla.engine.reuse import Resumed
from phyla.kv.prefix import Boundary, BoundaryKind, PrefixIndex, PrefixNamespace, Published, TokenMemory
from phyla.kv.prefix.boundaries import plan_boundaries
from phyla.kv.prefix.publishing import DraftPart, boundary_here, boundary_in_window

if TYPE_CHECKING:
    from phyla.kv.row_state import RowState
    from phyla.request import Request

SUBSTANTIAL_TOKENS = 256
"""Prompt tokens from which on a prefill is published as soon as it ends, for others that begin alike; a shorter one
is published with its answer."""


@dataclass(frozen=True)
class WantedSet:
    """The draft set that rows of this engine carry."""

    name: str
    part: DraftPart
    num_recomputed: int = 1


@dataclass
class _Reading:
    """What is being collected while a prompt is read."""

    namespace: PrefixNamespace
    num_cached: int
    planned: dict[int, BoundaryKind]
    boundaries: list[Boundary] = field(default_factory=list)
    window_start: int | None = None


class IndexedReuse:
    """The `PrefixReuse` of a `PrefixIndex`.

    Args:
        new_state: an empty row.
        index: what is kept.
        namespace: what all requests of this engine have in common; owner, adapters and media are the request's.
        chunk_tokens: of a prefill chunk without company: its edges are where layers that forget may be kept.
        memory: recognises generated text.
        draft: the set that rows carry, if a method keeps one.
    """

    def __init__(
        self,
        new_state: Callable[[], RowState],
        index: PrefixIndex,
        namespace: PrefixNamespace,
        chunk_tokens: int,
        memory: TokenMemory,
        draft: WantedSet | None = None,
    ) -> None:
        self._new_state = new_state
        self._index = index
        self._namespace = namespace
        self._chunk_tokens = chunk_tokens
        self._memory = memory
        self._draft = draft
        self._readings: dict[str, _Reading] = {}
        self._stats: Mapping[str, Any] = index.stats()

    def recognised(self, request: Request) -> Request:
        if request.skip_prefix_reuse or not self._index.is_enabled:
            return request
        rendered = self._memory.recognised(request.owner, request.rendered)
        return request if rendered is request.rendered else replace(request, rendered=rendered)

    def resume(self, request: Request) -> Resumed:
        if request.skip_prefix_reuse or not self._index.is_enabled:
            return Resumed(self._new_state())
        namespace = self._namespace_of(request)
        draft, ids = self._draft, request.rendered.ids
        found = self._index.lookup(
            namespace,
            ids,
            session_id=request.session_id,
            drafts={} if draft is None else {draft.name: draft.part.identity},
            num_recomputed=1 if draft is None else draft.num_recomputed,
        )
        resumed = Resumed(self._new_state())
        if found.hit is not None:
            with found.hit as hit:
                resumed = Resumed(hit.row(), hit.num_tokens, hit.is_exact)
        self._readings[request.request_id] = _Reading(
            namespace, resumed.num_cached, self._planned(request, resumed.num_cached, found.num_matched)
        )
        self._stats = self._index.stats()
        return resumed

    def begin_chunk(self, request: Request, state: RowState, num_tokens: int) -> None:
        reading = self._readings.get(request.request_id)
        if reading is None or not _forgets(state):
            return
        start = state.num_tokens
        if any(start < length < start + num_tokens for length in reading.planned):
            state.open_window(num_tokens)
            reading.window_start = start

    def publish_chunk(self, request: Request, state: RowState, *, is_exact: bool) -> None:
        reading = self._readings.get(request.request_id)
        if reading is None:
            return
        self._photograph(reading, state)
        num_read = state.num_tokens - reading.num_cached
        if state.num_tokens == len(request.rendered.ids) - 1 and num_read >= SUBSTANTIAL_TOKENS:
            self._publish(request, reading, state, is_exact=is_exact, has_finished=False)

    def publish_end(self, request: Request, state: RowState, *, is_exact: bool) -> None:
        reading = self._readings.get(request.request_id)
        if reading is None:
            return
        self._memory.remember(request.owner, state.tokens)
        self._publish(request, reading, state, is_exact=is_exact, has_finished=True)

    def abandon(self, request: Request) -> None:
        self._readings.pop(request.request_id, None)

    def flush(self) -> Mapping[str, Any]:
        dropped = self._index.flush()
        self._memory.forget()
        self._stats = self._index.stats()
        return dropped

    def close_session(self, session_id: str, owner: str) -> bool:
        return self._index.close_session(session_id, owner)

    def stats(self) -> Mapping[str, Any]:
        return self._stats

    def _namespace_of(self, request: Request) -> PrefixNamespace:
        media = tuple(span.content_hash for span in request.rendered.media)
        return replace(self._namespace, owner=request.owner, adapters=request.adapters, media=media)

    def _planned(self, request: Request, num_cached: int, num_matched: int) -> dict[int, BoundaryKind]:
        num_prompt = len(request.rendered.ids)
        planned = plan_boundaries(
            num_cached=num_cached,
            num_prompt=num_prompt,
            chunk_edges=range(num_cached + self._chunk_tokens, num_prompt, self._chunk_tokens),
            stable_boundary=request.rendered.stable_boundary,
            branch=num_matched or None,
        )
        return dict(planned)

    def _photograph(self, reading: _Reading, state: RowState) -> None:
        """Keep the layers that forget at every planned length that the chunk has reached."""
        if not _forgets(state):
            return
        end = state.num_tokens
        if reading.window_start is not None:
            start = reading.window_start
            for length in sorted(reading.planned):
                if start < length < end:
                    kind = reading.planned[length]
                    reading.boundaries.append(boundary_in_window(state, length - start, length, kind))
            state.keep(end - start)
            reading.window_start = None
        if end in reading.planned:
            reading.boundaries.append(boundary_here(state, reading.planned[end]))

    def _publish(
        self, request: Request, reading: _Reading, state: RowState, *, is_exact: bool, has_finished: bool
    ) -> None:
        draft = self._draft
        offer = Published(
            state,
            has_finished=has_finished,
            boundaries=reading.boundaries,
            is_exact=is_exact,
            drafts={draft.name: draft.part} if draft is not None and draft.name in state.sets else {},
            session_id=request.session_id,
        )
        self._index.publish(reading.namespace, offer)
        reading.boundaries = []
        self._stats = self._index.stats()


def _forgets(state: RowState) -> bool:
    return any(one.forgets for states in state.sets.values() for one in states)
