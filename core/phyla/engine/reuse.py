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

    is_exact: bool = True
    """Every token in it was computed on the exact route."""


class PrefixReuse(Protocol):
    """On the engine thread but for `recognised` and `stats`. What it raises at admission fails that request alone."""

    def recognised(self, request: Request) -> Request:
        """The request with the ids it should be computed with. Called from any thread, before it is submitted."""
        ...

    def waits(self, request: Request) -> bool:
        """Whether a prompt that is being read will give so much of this one that reading it again would be a waste.

        Asked before admission, until the answer is no.
        """
        ...

    def resume(self, request: Request) -> Resumed:
        """The state to go on from: the longest usable prefix, or an empty one. This is where memory is asked for."""
        ...

    def begin_chunk(self, request: Request, state: RowState, num_tokens: int) -> None:
        """A prefill chunk of so many tokens is about to be appended; a window may be opened for it."""
        ...

    def publish_chunk(self, request: Request, state: RowState, *, is_exact: bool) -> None:
        """The chunk ended here, and the state may be kept; a window that was opened for it is closed.

        Args:
            request: whose prompt it is.
            state: of its row, the chunk recorded.
            is_exact: every token in the state was computed on the exact route.
        """
        ...

    def publish_end(self, request: Request, state: RowState, *, is_exact: bool) -> None:
        """The row ended (never after a failure, never inside a chunk): its state is given away."""
        ...

    def make_room(self) -> None:
        """Let go of what stands in the way of running rows; asked after every decode round, since they grow."""
        ...

    def abandon(self, request: Request) -> None:
        """Every row of the request has ended, however it did."""
        ...

    def clear(self) -> Mapping[str, Any]:
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

    def waits(self, request: Request) -> bool:
        return False

    def resume(self, request: Request) -> Resumed:
        return Resumed(self.new_state())

    def recognised(self, request: Request) -> Request:
        return request

    def begin_chunk(self, request: Request, state: RowState, num_tokens: int) -> None:
        """Nothing is kept."""

    def publish_chunk(self, request: Request, state: RowState, *, is_exact: bool) -> None:
        """Nothing is kept."""

    def publish_end(self, request: Request, state: RowState, *, is_exact: bool) -> None:
        """Nothing is kept."""

    def make_room(self) -> None:
        """Nothing is kept."""

    def abandon(self, request: Request) -> None:
        """Nothing is kept."""

    def clear(self) -> Mapping[str, Any]:
        return {"entries": 0, "bytes": 0}

    def close_session(self, session_id: str, owner: str) -> bool:
        return False

    def stats(self) -> Mapping[str, Any]:
        return {"entries": 0, "bytes": 0, "max_bytes": 0, "hits": 0, "misses": 0}
