"""What the prefix index has done so far."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class PrefixCounters:
    """Counts since the start."""

    num_hits: int = 0
    num_misses: int = 0
    num_hit_tokens: int = 0
    num_published: int = 0
    num_superseded: int = 0
    num_evicted: int = 0
    num_oversized: int = 0
    """Entries that exceeded the budget alone and were skipped."""

    def as_dict(self) -> dict[str, int]:
        return {
            "hits": self.num_hits,
            "misses": self.num_misses,
            "hit_tokens": self.num_hit_tokens,
            "published": self.num_published,
            "superseded": self.num_superseded,
            "evictions": self.num_evicted,
            "oversized": self.num_oversized,
        }
