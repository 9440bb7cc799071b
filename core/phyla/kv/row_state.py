"""Everything one row has computed: the target's states, its drafter's, and the tokens they stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from phyla.errors import CannotRewind
from phyla.kv.state import ForPrompts

if TYPE_CHECKING:
    from phyla.kv.layer_spec import LayerSpec, Layout
    from phyla.kv.state import LayerState

TARGET = "target"

StateFactory = Callable[["LayerSpec"], "LayerState"]


def draft_set(method: str) -> str:
    """Name of the set of states that a draft method keeps for a row."""
    return f"draft:{method}"


@dataclass(frozen=True)
class _Window:
    num_tokens: int
    """The target's when it opened."""

    starts: Mapping[str, list[int]]
    """Tokens of each state of each set that it was opened in."""


class RowState:
    """Named sets of layer states and the tokens the target has computed.

    A set holds one state per layer that owns storage, in the layout's order; layers that borrow have none. Clones and
    the windows of prefill chunks act on all sets. A draft set may be behind the target's.
    While the row is seated in a stacked group, the group holds the target's states and `sets` doesn't.
    """

    def __init__(self, sets: Mapping[str, Sequence[LayerState]], tokens: Iterable[int] = ()) -> None:
        self.sets: dict[str, list[LayerState]] = {name: list(states) for name, states in sets.items()}
        self.tokens: list[int] = list(tokens)
        self._window: _Window | None = None

    @classmethod
    def fresh(cls, layout: Layout, factory: StateFactory) -> RowState:
        """An empty row: one state from `factory` per layer that owns storage."""
        return cls({TARGET: [factory(layer) for layer in layout if layer.owns_state]})

    @property
    def num_tokens(self) -> int:
        """Tokens the target has computed."""
        return len(self.tokens)

    @property
    def owned_bytes(self) -> int:
        return sum(state.owned_bytes for states in self.sets.values() for state in states)

    @property
    def has_open_window(self) -> bool:
        return self._window is not None

    def add_set(self, name: str, states: Sequence[LayerState]) -> None:
        """Let a drafter's states travel with this row."""
        assert name not in self.sets, f"the row already has a set '{name}'"
        self.sets[name] = list(states)

    def drop_set(self, name: str) -> None:
        """Let go of a drafter's states; nothing if there are none."""
        self.sets.pop(name, None)

    def sit_down(self) -> list[LayerState]:
        """Hand the target's states to a group: until `stand_up` the row can't be cloned, read or published."""
        return self.sets.pop(TARGET)

    def stand_up(self, states: Sequence[LayerState]) -> None:
        """Take the target's states back from a group."""
        assert TARGET not in self.sets, "the row isn't seated"
        self.sets = {TARGET: list(states), **self.sets}

    def leave_exact_route(self) -> None:
        """Let the target's states attend as fast as they can from now on: the bits needn't be mlx-lm's any more."""
        for state in self.sets[TARGET]:
            if isinstance(state, ForPrompts):
                state.attends_in_blocks = True

    def record(self, token_ids: Iterable[int]) -> None:
        """Note tokens that a step has just computed, in order."""
        self.tokens.extend(token_ids)

    def open_window(self, num_tokens: int, *, with_drafts: bool = False) -> None:
        """Promise that the next `num_tokens` may be taken back.

        Args:
            num_tokens: of the target.
            with_drafts: in the draft sets too. A verify leaves those to their sources, which know what they appended.
        """
        self.note_window(with_drafts=with_drafts)
        assert self._window is not None
        for name in self._window.starts:
            for state in self.sets[name]:
                state.open_window(num_tokens)

    def keep(self, num_kept: int) -> None:
        """Close the window on its first `num_kept` target tokens."""
        assert self._window is not None, "no window is open"
        for name in self._window.starts:
            for place, state in enumerate(self.sets[name]):
                state.keep(self.num_kept_of(name, place, num_kept))
        self.note_kept(num_kept)

    def note_window(self, *, with_drafts: bool = False) -> None:
        """Remember where a window starts whose states are opened elsewhere (by the row's group)."""
        assert self._window is None, "windows don't nest"
        names = [name for name in self.sets if with_drafts or name == TARGET]
        starts = {name: [state.num_tokens for state in self.sets[name]] for name in names}
        self._window = _Window(self.num_tokens, starts)

    def num_kept_of(self, name: str, place: int, num_kept: int) -> int:
        """How many of its tokens in the window one state keeps when the target keeps `num_kept`.

        A draft set is behind the target or isn't, and stays so: it gives back as many as the target does.
        """
        assert self._window is not None, "no window is open"
        num_given_back = self.num_tokens - self._window.num_tokens - num_kept
        num_appended = self.sets[name][place].num_tokens - self._window.starts[name][place]
        return num_kept if name == TARGET else max(0, num_appended - num_given_back)

    def note_kept(self, num_kept: int) -> None:
        """Forget tokens recorded since the window opened, but for the first `num_kept`."""
        assert self._window is not None, "no window is open"
        del self.tokens[self._window.num_tokens + num_kept :]
        self._window = None

    def can_rewind_to(self, num_tokens: int) -> bool:
        """Whether the target's states can all go back to `num_tokens`."""
        return all(state.can_rewind_to(num_tokens) for state in self.sets[TARGET])

    def clone(self, num_tokens: int | None = None) -> RowState:
        """An independent row at `num_tokens` (None: all of them).

        A draft set that can't go back as far is left out: a target is never given up for a drafter.

        Raises:
            CannotRewind: a layer of the target can't go back there.
        """
        length = self.num_tokens if num_tokens is None else num_tokens
        if not self.can_rewind_to(length):
            raise CannotRewind(f"A row of {self.num_tokens} tokens can't go back to {length} in every layer.")
        sets: dict[str, list[LayerState]] = {TARGET: [state.clone(length) for state in self.sets[TARGET]]}
        for name, states in self.sets.items():
            if name != TARGET and all(state.can_rewind_to(min(length, state.num_tokens)) for state in states):
                sets[name] = [state.clone(min(length, state.num_tokens)) for state in states]
        return RowState(sets, self.tokens[:length])

    def clone_at(self, num_kept: int) -> RowState:
        """An owned row as `keep(num_kept)` would leave it; the window stays open."""
        assert self._window is not None, "no window is open"
        sets = {
            name: [
                state.clone_at(self.num_kept_of(name, place, num_kept)) for place, state in enumerate(self.sets[name])
            ]
            for name in self._window.starts
        }
        return RowState(sets, self.tokens[: self._window.num_tokens + num_kept])
