"""The contract of per-layer state: what core may do with it, and what it may not know.

Core touches `LayerState` and `GroupState` only. What model code calls (`append`, `attend`, `advance`) is the kind's
own protocol, in `phyla.kv.kinds`; core never calls it and never asks which kind it holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

if TYPE_CHECKING:
    import mlx.core as mx

    from phyla.kv.stacked.seating import Seating
    from phyla.kv.stacked.source import Seated


@dataclass(frozen=True)
class StateArrays:
    """A state laid flat, for codecs, snapshots and compiled steps."""

    arrays: Mapping[str, mx.array]
    """Flat name to array, exactly the used length: no slack, no view of a larger buffer's tail."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    """JSON values that `adopt` needs beside the arrays: counts, cursor positions."""


@runtime_checkable
class LayerState(Protocol):
    """What one row stores for one layer.

    Windows: `open_window(n)`, then append n tokens, then `keep(k)`. Afterwards the state is bit-identical to one that
    was given only the first k tokens in the same step width. The engine opens them, and a draft source in its own set;
    they don't nest.
    """

    @property
    def num_tokens(self) -> int:
        """Tokens this state stands for (also those a ring or a recurrence no longer holds one by one)."""
        ...

    @property
    def owned_bytes(self) -> int:
        """Bytes of the buffers this state keeps alive: whole buffers, not the views used."""
        ...

    @property
    def forgets(self) -> bool:
        """Whether earlier lengths are ever lost. False promises `can_rewind_to` for every shorter length, always."""
        ...

    def open_window(self, num_tokens: int) -> None:
        """Promise that the next `num_tokens` appended may be taken back by `keep`."""
        ...

    def keep(self, num_kept: int) -> None:
        """Close the window, holding on to its first `num_kept` tokens (0 to all)."""
        ...

    def clone_at(self, num_kept: int) -> Self:
        """An owned state as `keep(num_kept)` would leave it; the window stays open."""
        ...

    def clone(self, num_tokens: int | None = None) -> Self:
        """An independent state with the first `num_tokens` tokens (None: all).

        Free until either side appends. Never the same array objects as this state.

        Raises:
            CannotRewind: `can_rewind_to(num_tokens)` is false.
        """
        ...

    def can_rewind_to(self, num_tokens: int) -> bool:
        """Whether `clone(num_tokens)` would succeed."""
        ...

    def arrays(self) -> StateArrays:
        """The state laid flat; `adopt` on an empty state of the same layer restores it bit for bit."""
        ...

    def adopt(self, arrays: StateArrays) -> None:
        """Take over what `arrays` describes. The state must be empty.

        Raises:
            LayoutError: the arrays don't fit this layer.
        """
        ...

    @classmethod
    def loop(cls, states: Sequence[Self]) -> GroupState:
        """The always-right group: the rows' own states, one after the other."""
        ...

    def stacked(self, seating: Seating) -> StackedState | None:
        """An empty stacked form of this layer for a bay, or None if the kind brings none."""
        ...


@runtime_checkable
class ForPrompts(Protocol):
    """Storage that knows a faster way to attend for the many queries of a prompt's chunk, with other low bits."""

    attends_in_blocks: bool
    """Take it. Off at first: the exact route must never see it."""


class GroupState(Protocol):
    """One layer's storage for all rows of a group; also speaks its kind's protocol."""

    @property
    def num_tokens(self) -> Sequence[int]:
        """Tokens per row, dead seats 0."""
        ...

    def open_window(self, num_tokens: Sequence[int]) -> None:
        """Open a window in each row for its own number of tokens (0: none in that row)."""
        ...

    def keep(self, num_kept: Sequence[int]) -> None:
        """Close the windows, row by row."""
        ...

    def evaluate(self) -> list[mx.array]:
        """The arrays to evaluate so that this step's state is real."""
        ...


class StackedState(GroupState, Protocol):
    """One layer's storage for all rows of a bay: it owns one buffer, or few, for all seats.

    Where rows stand is the seating's, which the group moves; `append` and what reads go by it. Bytes are copied in by
    `fill` and `seat` and out by `stand`: no view of a buffer ever leaves.
    """

    @property
    def traces_windows(self) -> bool:
        """Whether a window's step may be traced: it leaves nothing behind but what `evaluate` gives."""
        ...

    @property
    def owned_bytes(self) -> int:
        """Bytes of the buffers."""
        ...

    def replace(self, buffers: Sequence[mx.array]) -> None:
        """Go on with these in place of what `evaluate` gave, in its order: a traced step's inputs or outputs."""
        ...

    def fill(self, sources: Sequence[Seated | LayerState | None]) -> None:
        """Copy a row into every seat; one source per seat. The state must be new."""
        ...

    def seat(self, index: int, state: LayerState) -> None:
        """Copy a resident row's state over whatever seat `index` held."""
        ...

    def stand(self, index: int) -> StateArrays:
        """The used length of seat `index`, in bytes of its own, as a resident state of the layer adopts it."""
        ...

    @classmethod
    def joined(cls, stacks: Sequence[Self]) -> GroupState:
        """The states of several bays as one, rows in the order of the bays."""
        ...
