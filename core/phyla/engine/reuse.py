"""Where rows get their state from and where it goes: the seam that the prefix index fills."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from phyla.kv.row_state import RowState
    from phyla.request import Request


@dataclass(frozen=True)
class Resumed:
    """A row's state at admission."""

    state: RowState
    num_cached: int = 0
    """Prompt tokens that it holds already; always less than the prompt."""


class PrefixReuse(Protocol):
    """On the engine thread. What it raises at admission fails that request alone."""

    def resume(self, request: Request) -> Resumed:
        """The state to go on from: the longest usable prefix, or an empty one. This is where memory is asked for."""
        ...

    def publish_chunk(self, request: Request, state: RowState) -> None:
        """A prefill chunk ended here, and the state may be kept."""
        ...

    def publish_end(self, request: Request, state: RowState) -> None:
        """The row ended (never after a failure, never inside a chunk): its state is given away."""
        ...

    def flush(self) -> Mapping[str, Any]:
        """Drop everything that is kept; returns what was dropped (entries, bytes)."""
        ...

    def close_session(self, session_id: str, owner: str) -> bool:
        """Forget a session; whether it was known."""
        ...

    def stats(self) -> Mapping[str, Any]:
        """The `prompt_cache` part of `/stats`; called from any thread."""
        ...


@dataclass(frozen=True)
class NoReuse:
    """Every prompt is computed in full."""

    new_state: Callable[[], RowState]

    def resume(self, request: Request) -> Resumed:
        return Resumed(self.new_state())

    def publish_chunk(self, request: Request, state: RowState) -> None:
        """Nothing is kept."""

    def publish_end(self, request: Request, state: RowState) -> None:
        """Nothing is kept."""

    def flush(self) -> Mapping[str, Any]:
        return {"entries": 0, "bytes": 0}

    def close_session(self, session_id: str, owner: str) -> bool:
        return False

    def stats(self) -> Mapping[str, Any]:
        return {"entries": 0, "bytes": 0, "max_bytes": 0, "hits": 0, "misses": 0}
