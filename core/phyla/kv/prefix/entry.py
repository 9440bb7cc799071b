"""One retained prefix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from phyla.kv.prefix.boundaries import Boundary, Place, worth_keeping
from phyla.kv.prefix.publishing import Published, owned_row
from phyla.kv.row_state import TARGET, RowState

if TYPE_CHECKING:
    from phyla.kv.prefix.namespace import PrefixNamespace
    from phyla.kv.prefix.publishing import DraftPart
    from phyla.kv.state import LayerState


@dataclass
class EntryUse:
    """What retention decides by."""

    num_bytes: int = 0
    last_used: int = 0
    num_uses: int = 0
    cost: float = 0.0
    """Tokens that a hit saves: at first the entry's own, then those of its last hit."""

    priority: float = 0.0


@dataclass(eq=False)
class Entry:
    """Tokens and the states that stand for them.

    `row` holds every layer at the entry's end; `boundaries` hold, for earlier lengths, the layers that can't go back.
    """

    namespace: PrefixNamespace
    key: bytes
    row: RowState
    is_exact: bool
    drafts: Mapping[str, DraftPart]
    boundaries: dict[int, Boundary] = field(default_factory=dict)
    floor: int = 0
    """The smallest length from which on every length can be served without a boundary."""

    whole_floor: int = 0
    """Likewise with its draft sets."""

    use: EntryUse = field(default_factory=EntryUse)
    num_pins: int = 0
    sessions: set[tuple[str, str]] = field(default_factory=set)

    @classmethod
    def of(cls, namespace: PrefixNamespace, key: bytes, published: Published) -> Entry:
        """An entry that owns what it holds; boundaries come separately."""
        row = owned_row(published)
        drafts = {name: part for name, part in published.drafts.items() if name in row.sets}
        floor = rewind_floor(row)
        forgets = any(state.forgets for name in drafts for state in row.sets[name])
        whole_floor = row.num_tokens if forgets else floor
        return cls(namespace, key, row, published.is_exact, drafts, floor=floor, whole_floor=whole_floor)

    @property
    def num_tokens(self) -> int:
        return self.row.num_tokens

    @property
    def num_bytes(self) -> int:
        return self.row.owned_bytes + sum(boundary.owned_bytes for boundary in self.boundaries.values())

    def take_boundaries(self, boundaries: Iterable[Boundary]) -> None:
        """Retain those that say something the row itself doesn't."""
        for boundary in boundaries:
            if self.lacks(boundary.num_tokens):
                self.boundaries[boundary.num_tokens] = boundary

    def thin(self, max_boundaries: int) -> None:
        """Let go of the boundaries that pay least."""
        kept = worth_keeping(self.boundaries.values(), max_boundaries)
        self.boundaries = {boundary.num_tokens: boundary for boundary in kept}

    def lacks(self, length: int) -> bool:
        """Whether a boundary there would say something that isn't known."""
        return length < self.whole_floor and length not in self.boundaries

    def row_at(self, length: int, drafts: Mapping[str, str]) -> RowState:
        """An independent row of the first `length` tokens.

        Args:
            length: from `floor` on, or a boundary's.
            drafts: identity wanted of each draft set by its name; one that doesn't fit is left out.
        """
        sets = {TARGET: [self._clone((TARGET, place), length) for place in range(len(self.row.sets[TARGET]))]}
        for name, identity in drafts.items():
            part = self.drafts.get(name)
            if part is not None and part.identity == identity:
                states = self._draft_at(name, part, length)
                if states is not None:
                    sets[name] = states
        return RowState(sets, self.row.tokens[:length])

    def is_exact_at(self, length: int) -> bool:
        """Whether every token of a row of `length` from here was computed on the exact route."""
        boundary = self.boundaries.get(length)
        return self.is_exact and (boundary is None or boundary.is_exact)

    def has_draft(self, drafts: Mapping[str, str]) -> bool:
        """Whether all the wanted draft sets are stored beside the target's."""
        return all(name in self.drafts and self.drafts[name].identity == one for name, one in drafts.items())

    def end_boundary(self) -> Boundary:
        """This entry's own end, as a boundary of a longer one."""
        forgetful = {
            (name, place): state
            for name, states in self.row.sets.items()
            for place, state in enumerate(states)
            if state.forgets
        }
        return Boundary(self.num_tokens, forgetful, "end", self.is_exact, self.use.num_uses)

    def _clone(self, place: Place, length: int) -> LayerState:
        state = self.row.sets[place[0]][place[1]]
        boundary = self.boundaries.get(length)
        if boundary is not None and place in boundary.states:
            return boundary.states[place].clone()
        return state.clone(length)

    def _draft_at(self, name: str, part: DraftPart, length: int) -> list[LayerState] | None:
        """The draft set that goes with a target of `length` tokens, or None if it can't go back as far."""
        states = self.row.sets[name]
        boundary = self.boundaries.get(length)
        found: list[LayerState] = []
        for place, state in enumerate(states):
            wanted = state.num_tokens if length == self.num_tokens else min(state.num_tokens, max(0, length - part.lag))
            if boundary is not None and (name, place) in boundary.states:
                found.append(boundary.states[name, place].clone())
            elif state.can_rewind_to(wanted):
                found.append(state.clone(wanted))
            else:
                return None
        return found


def rewind_floor(row: RowState) -> int:
    """The smallest length from which on the row can go back to every length; 0 if it never forgets."""
    states = row.sets[TARGET]
    floor = 0
    for state in states:
        if state.forgets:
            floor = max(floor, _state_floor(state))
    return floor


def _state_floor(state: LayerState) -> int:
    low, high = 1, state.num_tokens
    if high == 0 or state.can_rewind_to(1):
        return 0
    # Invariant: every length from `high` on can be gone back to, `low` can't.
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if state.can_rewind_to(middle) else (middle, high)
    return high
