"""The scripted model's only layer: it stores the ids it was given, on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import mlx.core as mx

from phyla.errors import CannotRewind, LayoutError
from phyla.kv.layer_spec import LayerSpec, Plane
from phyla.kv.state import StackedState, StateArrays

if TYPE_CHECKING:
    from phyla.kv.stacked.seating import Seating

KIND = "script"


def script_layer() -> LayerSpec:
    """An invented kind that brings its own state, as an outside family's would."""
    return LayerSpec(0, KIND, (Plane("ids", 1, 1, dtype="int32"),), plain=ScriptState)


class ScriptState:
    """Ids of one row, in a list. Rewinds anywhere."""

    def __init__(self, layer: LayerSpec, ids: Sequence[int] = ()) -> None:
        self.layer = layer
        self.ids = list(ids)
        self._window_start: int | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    @property
    def owned_bytes(self) -> int:
        return 4 * len(self.ids)

    @property
    def forgets(self) -> bool:
        return False

    def open_window(self, num_tokens: int) -> None:
        assert self._window_start is None, "windows don't nest"
        self._window_start = len(self.ids)

    def keep(self, num_kept: int) -> None:
        assert self._window_start is not None, "no window is open"
        del self.ids[self._window_start + num_kept :]
        self._window_start = None

    def clone_at(self, num_kept: int) -> Self:
        assert self._window_start is not None, "no window is open"
        return type(self)(self.layer, self.ids[: self._window_start + num_kept])

    def clone(self, num_tokens: int | None = None) -> Self:
        length = len(self.ids) if num_tokens is None else num_tokens
        if not self.can_rewind_to(length):
            raise CannotRewind(f"A scripted row of {len(self.ids)} tokens can't go back to {length}.")
        return type(self)(self.layer, self.ids[:length])

    def can_rewind_to(self, num_tokens: int) -> bool:
        return 0 <= num_tokens <= len(self.ids)

    def arrays(self) -> StateArrays:
        return StateArrays({"ids": mx.array(self.ids, dtype=mx.int32)})

    def adopt(self, arrays: StateArrays) -> None:
        if set(arrays.arrays) != {"ids"}:
            raise LayoutError(f"A scripted layer stores 'ids' and was given {', '.join(arrays.arrays)}.")
        ids: list[int] = arrays.arrays["ids"].tolist()  # type: ignore[assignment]
        self.ids = ids

    @classmethod
    def loop(cls, states: Sequence[Self]) -> ScriptGroup:
        return ScriptGroup(states)

    def stacked(self, seating: Seating) -> StackedState | None:
        return None


class ScriptGroup:
    """The rows of a step, one after the other."""

    def __init__(self, states: Sequence[ScriptState]) -> None:
        self._states = states

    @property
    def num_tokens(self) -> Sequence[int]:
        return [state.num_tokens for state in self._states]

    def open_window(self, num_tokens: Sequence[int]) -> None:
        for state, count in zip(self._states, num_tokens, strict=True):
            if count:
                state.open_window(count)

    def keep(self, num_kept: Sequence[int]) -> None:
        for state, count in zip(self._states, num_kept, strict=True):
            state.keep(count)

    def evaluate(self) -> list[mx.array]:
        return []

    def append(self, ids: Sequence[Sequence[int]], num_real: Sequence[int]) -> list[list[int]]:
        """Store each row's real ids; returns the histories, this step included."""
        for state, row, count in zip(self._states, ids, num_real, strict=True):
            state.ids.extend(row[:count])
        return [list(state.ids) for state in self._states]
