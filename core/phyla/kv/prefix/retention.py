"""Who goes when memory runs short."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from phyla.kv.prefix.entry import Entry, EntryUse


class Retention(Protocol):
    """A policy over entries that nobody has pinned."""

    def published(self, use: EntryUse, num_tokens: int) -> None:
        """An entry of so many tokens has just come."""
        ...

    def reused(self, use: EntryUse, num_tokens: int) -> None:
        """A hit has just taken so many tokens."""
        ...

    def victim(self, entries: Iterable[Entry]) -> Entry | None:
        """The entry to let go first, or None if there is none."""
        ...

    def evicted(self, use: EntryUse) -> None:
        """The victim is gone."""
        ...


class LeastRecentlyUsed:
    """Lets go what was not used for the longest time."""

    def __init__(self) -> None:
        self._clock = 0

    def published(self, use: EntryUse, num_tokens: int) -> None:
        self._clock += 1
        use.last_used = self._clock

    def reused(self, use: EntryUse, num_tokens: int) -> None:
        self._clock += 1
        use.last_used = self._clock
        use.num_uses += 1

    def victim(self, entries: Iterable[Entry]) -> Entry | None:
        return min(entries, key=lambda entry: entry.use.last_used, default=None)

    def evicted(self, use: EntryUse) -> None:
        pass


class CostForSize(LeastRecentlyUsed):
    """Lets go what saves the least work for its bytes, and ages what isn't used.

    Source:
        GreedyDual-Size: Cao and Irani 1997, section 4; with frequency: Cherkasova 1998, section 3.
        Cost is in tokens; ties go to the entry that was used longer ago.
    """

    def __init__(self) -> None:
        super().__init__()
        self._age = 0.0

    def published(self, use: EntryUse, num_tokens: int) -> None:
        super().published(use, num_tokens)
        self._rate(use, num_tokens)

    def reused(self, use: EntryUse, num_tokens: int) -> None:
        super().reused(use, num_tokens)
        self._rate(use, num_tokens)

    def victim(self, entries: Iterable[Entry]) -> Entry | None:
        return min(entries, key=lambda entry: (entry.use.priority, entry.use.last_used), default=None)

    def evicted(self, use: EntryUse) -> None:
        self._age = max(self._age, use.priority)

    def _rate(self, use: EntryUse, num_tokens: int) -> None:
        use.cost = float(num_tokens)
        use.priority = self._age + use.cost * max(1, use.num_uses) / max(1, use.num_bytes)


def retention_named(name: str) -> Retention:
    """`lru` or `cost-size`, as the setting spells them."""
    return CostForSize() if name == "cost-size" else LeastRecentlyUsed()
