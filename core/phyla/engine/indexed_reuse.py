"""Prefix reuse through the index: where rows start from, and what they leave behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from phyla.engine.reading import Reading
from phyla.engine.reuse import Resumed
from phyla.errors import UsageError
from phyla.kv.prefix import (
    BoundaryKind,
    DraftPart,
    InFlightPrefills,
    PrefixIndex,
    PrefixNamespace,
    Published,
    TokenMemory,
    plan_boundaries,
)
from phyla.kv.row_state import TARGET, draft_set

if TYPE_CHECKING:
    from phyla.engine.drafting import Drafting
    from phyla.engine.pressure import Pressure
    from phyla.kv.row_state import RowState
    from phyla.request import Request

SUBSTANTIAL_TOKENS = 256
"""Prompt tokens from which on a prefill is published as soon as it ends, for others that begin alike; a shorter one
is published with its answer. Waiting for another prompt's prefill must save as many."""


@dataclass(frozen=True)
class WantedSet:
    """The draft set that rows of this engine carry."""

    name: str
    part: DraftPart
    num_recomputed: int = 1

    @classmethod
    def of(cls, drafting: Drafting | None) -> WantedSet | None:
        """What the method keeps per row; many keep nothing."""
        if drafting is None or not drafting.provider.facts.layout:
            return None
        facts = drafting.provider.facts
        return cls(draft_set(drafting.method), DraftPart(facts.identity, facts.lag), facts.num_recomputed)


@dataclass(frozen=True)
class _Wait:
    """A request that is held back until another's prefill has published so many tokens."""

    donor: str
    length: int


def no_adapters(name: str) -> str:
    """For engines whose model takes none.

    Raises:
        UsageError: always.
    """
    raise UsageError(f"Adapter '{name}' was asked for, and this engine has none.")


class IndexedReuse:
    """The `PrefixReuse` of a `PrefixIndex`.

    Args:
        new_state: an empty row.
        index: what is kept.
        namespace: what all requests of this engine have in common; owner, adapters and media are the request's.
        chunk_tokens: of a prefill chunk without company: its edges are where layers that forget may be kept.
        memory: recognises generated text.
        draft: the set that rows carry, if a method keeps one.
        pressure: when what is kept has to go before its budget is used up; None never.
        adapter_identity: content hash and scale of an adapter by its name.
    """

    def __init__(
        self,
        new_state: Callable[[], RowState],
        index: PrefixIndex,
        namespace: PrefixNamespace,
        chunk_tokens: int,
        memory: TokenMemory,
        draft: WantedSet | None = None,
        pressure: Pressure | None = None,
        adapter_identity: Callable[[str], str] = no_adapters,
    ) -> None:
        self._new_state = new_state
        self._index = index
        self._namespace = namespace
        self._chunk_tokens = chunk_tokens
        self._memory = memory
        self._draft = draft
        self._pressure = pressure
        self._adapter_identity = adapter_identity
        self._readings: dict[str, Reading] = {}
        self._in_flight = InFlightPrefills()
        self._waits: dict[str, _Wait] = {}
        self._stats: Mapping[str, Any] = index.stats()

    def recognised(self, request: Request) -> Request:
        if request.skip_prefix_reuse or not self._index.is_enabled:
            return request
        rendered = self._memory.recognised(request.owner, request.rendered)
        return request if rendered is request.rendered else replace(request, rendered=rendered)

    def waits(self, request: Request) -> bool:
        if request.skip_prefix_reuse or not self._index.is_enabled:
            return False
        wait = self._waits.get(request.request_id)
        if wait is not None and wait.donor in self._readings and wait.length in self._readings[wait.donor].awaited:
            return True
        namespace, ids = self._namespace_of(request), request.rendered.ids
        awaited = self._in_flight.longest_shared(namespace, ids)
        # Who waited for a prefill in vain, because the budget was too small for it, doesn't wait for it again.
        if awaited is None or (wait is not None and wait.donor == awaited.request_id):
            return False
        reading = self._readings[awaited.request_id]
        length = reading.will_serve(awaited.num_shared)
        if length - self._index.num_reusable(namespace, ids) < SUBSTANTIAL_TOKENS:
            return False
        reading.wait_for(length)
        self._waits[request.request_id] = _Wait(awaited.request_id, length)
        return True

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
                self._relieve(len(ids))
                resumed = Resumed(hit.row(), hit.num_tokens, hit.is_exact)
        else:
            self._relieve(len(ids))
        self._begin(request, namespace, resumed, found.num_matched)
        self._stats = self._index.stats()
        return resumed

    def begin_chunk(self, request: Request, state: RowState, num_tokens: int) -> None:
        reading = self._readings.get(request.request_id)
        if reading is not None:
            reading.begin_chunk(state, num_tokens)

    def publish_chunk(self, request: Request, state: RowState, *, is_exact: bool) -> None:
        reading = self._readings.get(request.request_id)
        if reading is None:
            return
        reading.photograph(state)
        is_through = state.num_tokens == reading.num_prompt - 1
        if is_through:
            self._in_flight.ended(request.request_id)
        is_substantial = is_through and state.num_tokens - reading.num_cached >= SUBSTANTIAL_TOKENS
        if reading.take_reached(state.num_tokens) or is_substantial:
            self._publish(request, reading, state, is_exact=is_exact, has_finished=False)

    def publish_end(self, request: Request, state: RowState, *, is_exact: bool) -> None:
        reading = self._readings.get(request.request_id)
        if reading is None:
            return
        self._memory.remember(request.owner, state.tokens)
        self._publish(request, reading, state, is_exact=is_exact, has_finished=True)

    def make_room(self) -> None:
        if self._relieve():
            self._stats = self._index.stats()

    def abandon(self, request: Request) -> None:
        self._readings.pop(request.request_id, None)
        self._waits.pop(request.request_id, None)
        self._in_flight.ended(request.request_id)

    def clear(self) -> Mapping[str, Any]:
        dropped = self._index.clear()
        self._memory.forget()
        self._stats = self._index.stats()
        return dropped

    def close_session(self, session_id: str, owner: str) -> bool:
        return self._index.close_session(session_id, owner)

    def stats(self) -> Mapping[str, Any]:
        return self._stats

    def _namespace_of(self, request: Request) -> PrefixNamespace:
        media = tuple(span.content_hash for span in request.rendered.media)
        adapters = tuple(self._adapter_identity(name) for name in request.adapters)
        return replace(self._namespace, owner=request.owner, adapters=adapters, media=media)

    def _begin(self, request: Request, namespace: PrefixNamespace, resumed: Resumed, num_matched: int) -> None:
        ids = request.rendered.ids
        self._waits.pop(request.request_id, None)
        self._readings[request.request_id] = Reading(
            namespace,
            num_prompt=len(ids),
            num_cached=resumed.num_cached,
            forgets=any(one.forgets for one in resumed.state.sets[TARGET]),
            planned=self._planned(request, resumed.num_cached, num_matched),
            num_begun=resumed.num_cached,
        )
        if resumed.num_cached < len(ids) - 1:
            self._in_flight.started(request.request_id, namespace, ids)

    def _relieve(self, num_new_tokens: int = 0) -> int:
        """Let go of what stands in the way of rows; the bytes that went."""
        excess = 0 if self._pressure is None else self._pressure.excess(num_new_tokens)
        return self._index.reclaim(excess) if excess else 0

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

    def _publish(
        self, request: Request, reading: Reading, state: RowState, *, is_exact: bool, has_finished: bool
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
        self._relieve()
        self._stats = self._index.stats()
