"""A prompt that is being read: what is kept of it on the way, and who waits for that."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from phyla.kv.prefix.publishing import boundary_here, boundary_in_window

if TYPE_CHECKING:
    from phyla.kv.prefix import Boundary, BoundaryKind, PrefixNamespace
    from phyla.kv.row_state import RowState


@dataclass
class Reading:
    """See the module. Lengths are tokens of the prompt."""

    namespace: PrefixNamespace
    num_prompt: int
    num_cached: int
    forgets: bool
    """Some layer of the target can't be wound back: only planned lengths can be given to others."""

    planned: dict[int, BoundaryKind]
    boundaries: list[Boundary] = field(default_factory=list)
    awaited: set[int] = field(default_factory=set)
    """Lengths that other prompts wait for."""

    num_begun: int = 0
    """Tokens computed, those of the chunk under way included."""

    window_start: int | None = None

    def begin_chunk(self, state: RowState, num_tokens: int) -> None:
        """Open a window if a planned length falls into the chunk."""
        start = state.num_tokens
        self.num_begun = start + num_tokens
        if forgets(state) and any(start < length < self.num_begun for length in self.planned):
            state.open_window(num_tokens, with_drafts=True)
            self.window_start = start

    def photograph(self, state: RowState) -> None:
        """Keep the layers that forget at every planned length that the chunk has reached; its window is closed."""
        if not forgets(state):
            return
        end = state.num_tokens
        if self.window_start is not None:
            start = self.window_start
            for length in sorted(self.planned):
                if start < length < end:
                    kind = self.planned[length]
                    self.boundaries.append(boundary_in_window(state, length - start, length, kind))
            state.keep(end - start)
            self.window_start = None
        if end in self.planned:
            self.boundaries.append(boundary_here(state, self.planned[end]))

    def will_serve(self, num_shared: int) -> int:
        """How many of its first `num_shared` tokens another prompt can get from this one if it waits."""
        reachable = min(num_shared, self.num_prompt - 1)
        if not self.forgets or reachable > self.num_begun:
            return reachable
        return max((length for length in self.planned if length <= reachable), default=0)

    def wait_for(self, length: int) -> None:
        """Another prompt waits until so many tokens are published."""
        if length > self.num_begun:
            self.planned.setdefault(length, "branch")
        self.awaited.add(length)

    def take_reached(self, num_computed: int) -> bool:
        """Forget the waits that so many tokens satisfy; whether there were any."""
        reached = {length for length in self.awaited if length <= num_computed}
        self.awaited -= reached
        return bool(reached)


def forgets(state: RowState) -> bool:
    """Whether a layer of any of the row's sets, its drafter's included, can't be wound back everywhere."""
    return any(one.forgets for states in state.sets.values() for one in states)
