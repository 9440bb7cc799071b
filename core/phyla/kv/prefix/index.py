"""Finding and keeping computed prefixes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from phyla.kv.prefix.boundaries import Boundary, worth_keeping
from phyla.kv.prefix.entry import Entry
from phyla.kv.prefix.packed import ID_BYTES, num_tokens, packed
from phyla.kv.prefix.publishing import Published, owned_boundary
from phyla.kv.prefix.radix import RadixTree
from phyla.kv.prefix.retention import Retention, retention_named
from phyla.kv.prefix.sessions import SessionLinks
from phyla.kv.prefix.stats import PrefixCounters

if TYPE_CHECKING:
    from phyla.kv.prefix.namespace import PrefixNamespace
    from phyla.kv.prefix.settings import PrefixSettings
    from phyla.kv.row_state import RowState

WantedDraft = Mapping[str, str]
"""Identity wanted of each draft set, by its name in the row."""

NO_DRAFT: WantedDraft = {}


class Hit:
    """A prefix that was found. It pins its entry until `release`, so use it in a `with` block."""

    def __init__(self, entry: Entry, num_tokens: int, drafts: WantedDraft) -> None:
        self._entry = entry
        self._drafts = drafts
        self._is_pinned = True
        self.num_tokens = num_tokens
        entry.num_pins += 1

    @property
    def is_exact(self) -> bool:
        """Whether every token was computed on the exact route."""
        return self._entry.is_exact_at(self.num_tokens)

    def row(self) -> RowState:
        """An independent row of `num_tokens` tokens; the donor stays as it is. Billed as a full row."""
        return self._entry.row_at(self.num_tokens, self._drafts)

    def release(self) -> None:
        """Let the entry be evicted again. Safe to call twice."""
        if self._is_pinned:
            self._is_pinned = False
            self._entry.num_pins -= 1

    def __enter__(self) -> Hit:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


@dataclass(frozen=True)
class Lookup:
    """What the index has for a prompt."""

    num_matched: int
    """Tokens that some entry begins with too, reusable or not: where another prompt left this one."""

    hit: Hit | None

    @property
    def num_reused(self) -> int:
        return self.hit.num_tokens if self.hit is not None else 0


class PrefixIndex:
    """Retained prefixes under a budget in bytes. Lives on the engine thread; imports no mlx of its own.

    Args:
        budget_bytes: most bytes retained; 0 keeps nothing.
        retention: who goes first when it is full.
        use_sessions: whether entries of open sessions go last.
        max_boundaries: lengths per entry at which layers that forget are retained.
        only_exact: keep and serve only what was computed on the exact route.
    """

    def __init__(
        self,
        budget_bytes: int,
        retention: Retention | None = None,
        *,
        use_sessions: bool = True,
        max_boundaries: int = 8,
        only_exact: bool = False,
    ) -> None:
        self.budget_bytes = budget_bytes
        self._retention = retention or retention_named("lru")
        self._use_sessions = use_sessions
        self._max_boundaries = max_boundaries
        self._only_exact = only_exact
        self._trees: dict[PrefixNamespace, RadixTree[Entry]] = {}
        self._entries: dict[Entry, None] = {}
        self._sessions = SessionLinks()
        self._counters = PrefixCounters()
        self._num_bytes = 0

    @classmethod
    def configured(cls, settings: PrefixSettings, *, only_exact: bool = False) -> PrefixIndex:
        """An index as the settings say."""
        return cls(
            settings.cache_bytes,
            retention_named(settings.retention),
            use_sessions=settings.sessions,
            max_boundaries=settings.max_boundaries,
            only_exact=only_exact,
        )

    @property
    def is_enabled(self) -> bool:
        return self.budget_bytes > 0

    @property
    def num_bytes(self) -> int:
        """Bytes of the buffers that entries own."""
        return self._num_bytes

    def lookup(
        self,
        namespace: PrefixNamespace,
        token_ids: Sequence[int],
        *,
        session_id: str | None = None,
        drafts: WantedDraft = NO_DRAFT,
        num_recomputed: int = 1,
    ) -> Lookup:
        """The longest usable prefix of a prompt, at most all but its last tokens; counted as a hit or a miss.

        Args:
            namespace: only entries of this one serve.
            token_ids: the whole prompt.
            session_id: whose last entry wins among equals, and is linked to the hit.
            drafts: draft sets that would be welcome; among equal lengths an entry that has them wins.
            num_recomputed: tokens at the end that are computed again in any case, at least 1.
        """
        assert num_recomputed >= 1, "the last token's logits are never stored"
        key = packed(token_ids)[: -ID_BYTES * num_recomputed]
        tree = self._trees.get(namespace)
        num_matched = tree.num_matched(key) if tree is not None else 0
        found = self._longest(namespace, key, session_id, drafts)
        if found is None:
            self._counters.num_misses += 1
            return Lookup(num_matched, None)
        entry, length = found
        self._used(entry, length)
        if session_id is not None and self._use_sessions:
            self._sessions.link(session_id, entry)
        return Lookup(num_matched, Hit(entry, length, drafts))

    def num_reusable(self, namespace: PrefixNamespace, token_ids: Sequence[int]) -> int:
        """Tokens that a lookup would give now. Counts nothing, pins nothing."""
        found = self._longest(namespace, packed(token_ids)[:-ID_BYTES], None, NO_DRAFT)
        return found[1] if found is not None else 0

    def publish(self, namespace: PrefixNamespace, published: Published) -> bool:
        """Retain a prefix; whether it took an entry of its own.

        Nothing is copied if an entry serves these tokens already: that one then takes the new boundaries. Otherwise
        what the new entry makes superfluous goes, then others until the budget holds. An entry that exceeds the budget
        alone is skipped, and nobody has to go for it.
        """
        row = published.row
        if not self.is_enabled or row.num_tokens == 0 or (self._only_exact and not published.is_exact):
            return False
        key = packed(row.tokens)
        covering = self._covering(namespace, key, published)
        if covering is not None:
            self._enrich(covering, published)
            self._link(published.session_id, covering)
            return False
        entry = Entry.of(namespace, key, published)
        entry.take_boundaries(self._owned_boundaries(entry, published))
        if not self._fits(entry):
            self._counters.num_oversized += 1
            return False
        self._absorb_superseded(entry)
        self._store(entry)
        self._link(published.session_id, entry)
        self._evict_to(self.budget_bytes, spare=entry)
        self._evict_to(self.budget_bytes)
        return entry in self._entries

    def reclaim(self, num_bytes: int) -> int:
        """Let go of at least so many bytes, or of all that isn't pinned; the bytes that went."""
        before = self._num_bytes
        self._evict_to(max(0, before - num_bytes))
        return before - self._num_bytes

    def clear(self) -> dict[str, int]:
        """Drop everything, pinned entries too (their hits stay good); what was dropped."""
        dropped = {"entries": len(self._entries), "bytes": self._num_bytes}
        for entry in list(self._entries):
            self._remove(entry)
        return dropped

    def close_session(self, session_id: str, owner: str = "") -> bool:
        """Forget a session's link; its entries stay. Whether it was known."""
        return self._sessions.close(session_id, owner)

    def entries(self) -> Iterator[Entry]:
        """What is retained, the oldest first."""
        return iter(self._entries)

    def stats(self) -> dict[str, Any]:
        """Counters for `/stats`."""
        num_boundaries = sum(len(entry.boundaries) for entry in self._entries)
        return {
            "entries": len(self._entries),
            "boundaries": num_boundaries,
            "bytes": self._num_bytes,
            "max_bytes": self.budget_bytes,
            "pinned": sum(entry.num_pins > 0 for entry in self._entries),
            **self._counters.as_dict(),
        }

    def _longest(
        self, namespace: PrefixNamespace, key: bytes, session_id: str | None, drafts: WantedDraft
    ) -> tuple[Entry, int] | None:
        tree = self._trees.get(namespace)
        longest = next(tree.candidates(key), None) if tree is not None else None
        if longest is None:
            return None
        length, candidates = longest
        own = self._sessions.entry_of(session_id, namespace) if session_id is not None else None
        if own is not None and own in candidates:
            return own, length
        return next((entry for entry in candidates if entry.has_draft(drafts)), candidates[0]), length

    def _covering(self, namespace: PrefixNamespace, key: bytes, published: Published) -> Entry | None:
        """An entry that serves all of the key already and no worse."""
        tree = self._trees.get(namespace)
        longest = next(tree.candidates(key), None) if tree is not None else None
        if longest is None or longest[0] < num_tokens(key):
            return None
        wanted = {name: part.identity for name, part in published.drafts.items()}
        for entry in longest[1]:
            if (entry.is_exact_at(longest[0]) or not published.is_exact) and entry.has_draft(wanted):
                return entry
        return None

    def _enrich(self, entry: Entry, published: Published) -> None:
        """Let an entry that stays take over boundaries of a row whose tokens it has anyway."""
        new = [one for one in published.boundaries if entry.lacks(one.num_tokens)]
        if not new:
            return
        self._trees[entry.namespace].remove(entry.key, entry)
        entry.take_boundaries(owned_boundary(one, published.is_exact) for one in new)
        entry.thin(self._max_boundaries)
        self._trees[entry.namespace].insert(entry.key, entry, entry.floor, entry.boundaries)
        self._num_bytes += entry.num_bytes - entry.use.num_bytes
        entry.use.num_bytes = entry.num_bytes
        self._evict_to(self.budget_bytes)

    def _owned_boundaries(self, entry: Entry, published: Published) -> list[Boundary]:
        needed = [one for one in published.boundaries if entry.lacks(one.num_tokens)]
        return [owned_boundary(one, published.is_exact) for one in worth_keeping(needed, self._max_boundaries)]

    def _fits(self, entry: Entry) -> bool:
        entry.thin(self._max_boundaries)
        if entry.num_bytes > self.budget_bytes:
            entry.thin(0)
        return entry.num_bytes <= self.budget_bytes

    def _absorb_superseded(self, entry: Entry) -> None:
        tree = self._trees.get(entry.namespace)
        if tree is None:
            return
        whole = next(tree.candidates(entry.key), (0, []))
        same = [old for old in whole[1] if old.key == entry.key]
        shorter = [old for length, old in tree.ending_before(entry.key) if old.num_tokens == length]
        for old in [*same, *(one for one in shorter if _is_superseded(one, entry))]:
            entry.take_boundaries(old.boundaries.values())
            if old.key != entry.key:
                entry.take_boundaries([old.end_boundary()])
            self._sessions.follow(old, entry)
            self._remove(old)
            self._counters.num_superseded += 1
        self._fits(entry)

    def _store(self, entry: Entry) -> None:
        tree = self._trees.setdefault(entry.namespace, RadixTree())
        tree.insert(entry.key, entry, entry.floor, entry.boundaries)
        self._entries[entry] = None
        entry.use.num_bytes = entry.num_bytes
        self._num_bytes += entry.use.num_bytes
        self._retention.published(entry.use, entry.num_tokens)
        self._counters.num_published += 1

    def _remove(self, entry: Entry) -> None:
        tree = self._trees[entry.namespace]
        tree.remove(entry.key, entry)
        if tree.is_empty:
            del self._trees[entry.namespace]
        del self._entries[entry]
        self._num_bytes -= entry.use.num_bytes
        self._sessions.drop(entry)

    def _used(self, entry: Entry, length: int) -> None:
        self._retention.reused(entry.use, length)
        boundary = entry.boundaries.get(length)
        if boundary is not None:
            boundary.num_uses += 1
        self._counters.num_hits += 1
        self._counters.num_hit_tokens += length

    def _link(self, session_id: str | None, entry: Entry) -> None:
        if session_id is not None and self._use_sessions:
            self._sessions.link(session_id, entry)

    def _evict_to(self, num_bytes: int, spare: Entry | None = None) -> None:
        while self._num_bytes > num_bytes:
            free = [entry for entry in self._entries if entry.num_pins == 0 and entry is not spare]
            unrelated = [entry for entry in free if not entry.sessions]
            victim = self._retention.victim(unrelated or free)
            if victim is None:
                return
            self._remove(victim)
            self._retention.evicted(victim.use)
            self._counters.num_evicted += 1


def _is_superseded(old: Entry, new: Entry) -> bool:
    """Whether the longer entry can serve all that the old one serves, once it has the old one's boundaries."""
    has_its_drafts = new.has_draft({name: part.identity for name, part in old.drafts.items()})
    return has_its_drafts and (new.floor <= old.floor or old.floor == old.num_tokens)
