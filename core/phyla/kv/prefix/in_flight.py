"""Prompts that are being read right now, so that a later one can wait instead of reading the same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from phyla.kv.prefix.packed import num_common, packed

if TYPE_CHECKING:
    from phyla.kv.prefix.namespace import PrefixNamespace


@dataclass(frozen=True)
class Awaited:
    """A running prefill whose tokens a waiting prompt begins with."""

    request_id: str
    num_shared: int
    """Tokens both begin with; at most all but the waiting prompt's last."""


class InFlightPrefills:
    """Which requests are in prefill, and on what. The scheduler decides whether waiting pays."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[PrefixNamespace, bytes]] = {}

    def started(self, request_id: str, namespace: PrefixNamespace, token_ids: Sequence[int]) -> None:
        """A prefill began."""
        self._running[request_id] = (namespace, packed(token_ids))

    def ended(self, request_id: str) -> None:
        """It published, failed or was cancelled. Unknown ids pass."""
        self._running.pop(request_id, None)

    def longest_shared(self, namespace: PrefixNamespace, token_ids: Sequence[int]) -> Awaited | None:
        """The running prefill that shares most with this prompt, the earliest among equals; None if none does."""
        key = packed(token_ids[:-1])
        shared = [
            Awaited(request_id, num_common(running, key))
            for request_id, (running_namespace, running) in self._running.items()
            if running_namespace == namespace
        ]
        best = max(shared, key=lambda one: one.num_shared, default=None)
        return best if best is not None and best.num_shared > 0 else None
