"""Where a bay's rows stand, and what a step makes of that: one object that all layers of the bay look at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import mlx.core as mx

from phyla.errors import LayoutError
from phyla.kv.mask import Bidirectional, BidirectionalSpans, Causal, Mask, RowLengths, Windowed
from phyla.kv.stacked.buckets import ROOM_TOKENS

if TYPE_CHECKING:
    from phyla.backend.strategy import Strategies

REACH_STEP = 32
"""Columns by which what a step looks at grows: few shapes for the kernels, and little that nobody needs."""


class Seating:
    """Tokens per seat, and the arrays that follow from them, made once per step and not once per layer.

    The group moves it: `advance` when a step's forward was built, `open_window` and `keep` around a verify.

    Args:
        capacity: tokens that a seat holds, the padding of its last step included.
        num_tokens: per seat; None is a dead one, and what lies there is nobody's.
        room: positions of the widest step.
        strategies: what the layers' ways of computing are chosen by; None takes the usual ones.
    """

    def __init__(
        self,
        capacity: int,
        num_tokens: Sequence[int | None],
        room: int = ROOM_TOKENS,
        strategies: Strategies | None = None,
    ) -> None:
        self.capacity = capacity
        self.room = room
        self.strategies = strategies
        self.num_tokens = [held or 0 for held in num_tokens]
        """Per seat; 0 for a dead one."""

        self.is_taken = [held is not None for held in num_tokens]
        self._window_starts: list[int] | None = None
        self._derived: dict[object, mx.array] = {}
        self._is_followed = False

    @property
    def num_seats(self) -> int:
        return len(self.num_tokens)

    @property
    def starts(self) -> mx.array:
        """(B,) int32: where each seat's next token goes. In a traced step, whatever `follow` was given."""
        return self._made("starts", lambda: mx.array(self.num_tokens, dtype=mx.int32))

    def follow(self, starts: mx.array) -> None:
        """Derive everything from this (B,) array until `unfollow`: a traced step's own input."""
        self._derived = {"starts": starts}
        self._is_followed = True

    def unfollow(self) -> None:
        """The step is traced: forget its arrays, which have no numbers."""
        self._derived = {}
        self._is_followed = False

    def reach(self, width: int, num_columns: int) -> int:
        """Columns, from the front, that a step of so many positions may look at: as far as the longest row.

        All of them in a traced step: its shapes can't follow its rows.
        """
        if self._is_followed:
            return num_columns
        longest = max(self.num_tokens) + width
        return min(num_columns, -(-longest // REACH_STEP) * REACH_STEP)

    def place(self, seat: int, num_tokens: int | None) -> None:
        """The seat is taken by a row of so many tokens, or is dead from now on (None)."""
        self.num_tokens[seat] = num_tokens or 0
        self.is_taken[seat] = num_tokens is not None
        self._derived = {}

    def advance(self, num_real: Sequence[int]) -> None:
        """A step stored so many tokens per seat."""
        self.num_tokens = [held + new for held, new in zip(self.num_tokens, num_real, strict=True)]
        self._derived = {}

    def open_window(self) -> None:
        """Remember where each seat stands."""
        assert self._window_starts is None, "windows don't nest"
        self._window_starts = list(self.num_tokens)

    def keep(self, num_kept: Sequence[int]) -> None:
        """Go back to so many tokens behind where each seat stood."""
        assert self._window_starts is not None, "no window is open"
        self.num_tokens = [start + kept for start, kept in zip(self._window_starts, num_kept, strict=True)]
        self._window_starts = None
        self._derived = {}

    def columns(self, width: int, num_columns: int) -> mx.array:
        """(B, 1, L, 1) int32: the column that each of a step's positions is stored in.

        Modulo the number of columns: that is how a ring wraps, and a dead seat stays inside its buffer.
        """
        return self._made(
            ("columns", width, num_columns), lambda: (self._positions(width) % num_columns)[:, None, :, None]
        )

    def visible(
        self,
        mask: Mask,
        width: int,
        num_columns: int,
        reach: int,
        *,
        num_real: Sequence[int],
        includes_step: bool,
        window: int | None,
        wraps: bool,
    ) -> mx.array:
        """(B, 1, L, S) booleans: the columns that each position of a step may see, S being `reach`.

        Args:
            mask: what it may see by position.
            width: of the step, L.
            num_columns: of the buffer.
            reach: columns that are looked at.
            num_real: positions per seat that the step stores.
            includes_step: whether this step's tokens are stored already.
            window: tokens that the buffer promises to hold, or None for all.
            wraps: a column is a position modulo their number, and not the position.
        """
        if isinstance(mask, Causal) and window is not None:
            mask = Windowed(window)

        def make() -> mx.array:
            queries = self._positions(width)
            newest = queries[:, -1:] if includes_step else self.starts[:, None] - 1
            keys = mx.arange(reach, dtype=mx.int32)[None]
            if wraps:
                # `%` has the sign of its divisor: this is a distance, backwards from the newest.
                keys = newest - (newest - keys) % num_columns
            ends = self.starts[:, None]
            if includes_step:
                ends = ends + mx.array(list(num_real), dtype=mx.int32)[:, None]
            allowed = _allowed(mask, keys[:, None], queries[:, :, None], ends[:, None])
            if wraps:
                allowed = allowed & (keys >= 0)[:, None]
            if not includes_step:
                allowed = allowed & (keys < ends)[:, None]
            return allowed[:, None]

        if isinstance(mask, Causal | Windowed):
            return self._made(("visible", mask, width, num_columns, reach, includes_step, wraps), make)
        return make()

    def _positions(self, width: int) -> mx.array:
        """(B, L) int32."""
        return self._made(("positions", width), lambda: self.starts[:, None] + mx.arange(width, dtype=mx.int32))

    def _made(self, name: object, make: Callable[[], mx.array]) -> mx.array:
        if name not in self._derived:
            self._derived[name] = make()
        return self._derived[name]


def _allowed(mask: Mask, keys: mx.array, queries: mx.array, ends: mx.array) -> mx.array:
    """By position: keys (B or 1, 1, S), queries (B, L, 1), ends (B, 1, 1) behind each row's last real one."""
    if isinstance(mask, Causal):
        return keys <= queries
    if isinstance(mask, Windowed):
        return (keys <= queries) & (keys > queries - mask.window)
    if isinstance(mask, Bidirectional):
        return mx.broadcast_to(keys < ends, (ends.shape[0], queries.shape[1], keys.shape[-1]))
    if isinstance(mask, RowLengths):
        lengths = mx.array(list(mask.lengths), dtype=mx.int32)[:, None, None]
        return _allowed(mask.within, keys, queries, ends) & (keys < lengths)
    if isinstance(mask, BidirectionalSpans):
        allowed = _allowed(mask.within, keys, queries, ends)
        for start, end in mask.spans:
            allowed = allowed | ((queries >= start) & (queries < end) & (keys >= start) & (keys < end))
        return allowed & (keys < ends)
    raise LayoutError(
        f"A stacked group can't take a mask of type {type(mask).__name__}: its rows' columns lie in one buffer, padded "
        "to one length. Use --group loop."
    )
