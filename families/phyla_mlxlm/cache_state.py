"""A row's whole prompt cache as one layer's state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self

import mlx.core as mx
from phyla.errors import CannotRewind, LayoutError
from phyla.kv.loops import RowLoop
from phyla.kv.state import StackedState, StateArrays

from phyla_mlxlm.caches import arrays_of, can_give_back, copies, flat, forget, give_back, rebuilt

if TYPE_CHECKING:
    from phyla import LayerSpec
    from phyla.kv.stacked.seating import Seating


class CachedModel(Protocol):
    """A model that keeps what it needs between steps in the caches it is given."""

    def new_caches(self) -> list[Any]:
        """Empty ones, one per layer that keeps anything."""
        ...

    def run(self, ids: mx.array, caches: list[Any]) -> mx.array:
        """(1, L) ids to (1, L, V) logits; the caches have grown by L tokens."""
        ...


@dataclass
class _Window:
    """The caches from before the window, and what ran since."""

    held: list[Any] | None
    """None if there were none yet, or if they can take everything back without help."""

    num_tokens: int
    steps: list[tuple[CachedModel, mx.array]] = field(default_factory=list)


class CacheState:
    """What one row has in mlx-lm's caches.

    Empty until the model first runs and makes them. Where a cache can't take tokens back, a window runs again what it
    keeps, from the caches as they were. Kept tokens were computed in the step's width, and are run again in their own.
    """

    def __init__(self, layer: LayerSpec) -> None:
        self.layer = layer
        self._caches: list[Any] = []
        self._num_tokens = 0
        self._window: _Window | None = None

    def advance(self, model: CachedModel, ids: mx.array) -> mx.array:
        """Run (1, L) ids: (1, L, V) logits."""
        if self._window is not None:
            self._window.steps.append((model, ids))
        return self._run(model, ids)

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    @property
    def owned_bytes(self) -> int:
        held = [] if self._window is None else self._window.held or []
        return sum(array.nbytes for array in (*arrays_of(self._caches), *arrays_of(held)))

    @property
    def forgets(self) -> bool:
        # An empty row doesn't know its caches yet; to forget is the safe thing to say.
        return not self._caches or forget(self._caches, self._num_tokens)

    def open_window(self, num_tokens: int) -> None:
        assert self._window is None, "windows don't nest"
        # A full cache takes back anything. All others are held, since how far a window goes decides over them.
        held = copies(self._caches) if self._caches and forget(self._caches, self._num_tokens) else None
        self._window = _Window(held, self._num_tokens)

    def keep(self, num_kept: int) -> None:
        window, num_back = self._given_back(num_kept)
        if num_back > 0 and can_give_back(self._caches, self._num_tokens, num_back):
            give_back(self._caches, num_back)
            self._num_tokens -= num_back
        elif num_back > 0:
            self._restore(window, window.held or [], num_kept)
        self._window = None

    def clone_at(self, num_kept: int) -> Self:
        window, num_back = self._given_back(num_kept)
        if can_give_back(self._caches, self._num_tokens, num_back):
            return self.clone(window.num_tokens + num_kept)
        copy = type(self)(self.layer)
        copy._restore(window, copies(window.held or []), num_kept)
        return copy

    def clone(self, num_tokens: int | None = None) -> Self:
        length = self._num_tokens if num_tokens is None else num_tokens
        if not self.can_rewind_to(length):
            raise CannotRewind(
                f"mlx-lm's caches of this model stand at {self._num_tokens} tokens and can't go back to {length}. "
                "Only retained boundaries can be reused."
            )
        copy = type(self)(self.layer)
        if length > 0:
            copy._caches = copies(self._caches)
            give_back(copy._caches, self._num_tokens - length)
            copy._num_tokens = length
        return copy

    def can_rewind_to(self, num_tokens: int) -> bool:
        if num_tokens in (0, self._num_tokens):
            return True
        return 0 < num_tokens < self._num_tokens and can_give_back(
            self._caches, self._num_tokens, self._num_tokens - num_tokens
        )

    def arrays(self) -> StateArrays:
        arrays, caches = flat(self._caches)
        return StateArrays(arrays, {"num_tokens": self._num_tokens, "caches": caches})

    def adopt(self, arrays: StateArrays) -> None:
        assert self._num_tokens == 0, "only an empty state adopts"
        if not {"num_tokens", "caches"} <= set(arrays.facts):
            raise LayoutError("The arrays aren't those of mlx-lm's caches: they were made for another layout.")
        self._caches = rebuilt(arrays.arrays, arrays.facts["caches"])
        self._num_tokens = int(arrays.facts["num_tokens"])

    def buffers(self) -> list[mx.array]:
        return arrays_of(self._caches)

    @classmethod
    def loop(cls, states: Sequence[Self]) -> CacheLoop:
        return CacheLoop(states)

    def stacked(self, seating: Seating) -> StackedState | None:
        return None

    def _run(self, model: CachedModel, ids: mx.array) -> mx.array:
        if not self._caches:
            self._caches = model.new_caches()
        logits = model.run(ids, self._caches)
        self._num_tokens += ids.shape[1]
        return logits

    def _given_back(self, num_kept: int) -> tuple[_Window, int]:
        assert self._window is not None, "no window is open"
        num_back = self._num_tokens - self._window.num_tokens - num_kept
        assert num_back >= 0, "more kept than appended"
        return self._window, num_back

    def _restore(self, window: _Window, caches: list[Any], num_kept: int) -> None:
        """Start from these caches and run the window's first `num_kept` tokens."""
        assert caches or window.num_tokens == 0, "the caches before the window are gone"
        self._caches, self._num_tokens, left = caches, window.num_tokens, num_kept
        for model, ids in window.steps:
            if left > 0:
                self._run(model, ids[:, :left])
                left -= min(left, ids.shape[1])


class CacheLoop(RowLoop[CacheState]):
    """Rows' caches, one after the other."""

    def advance(self, model: CachedModel, ids: mx.array, num_real: Sequence[int]) -> mx.array:
        """Run each row's real ids by itself.

        Args:
            ids: (B, L).

        Returns:
            (1, B*L, V) logits; zeros in padded places.
        """
        if len(self.states) == 1 and num_real[0] == ids.shape[1]:
            return self.states[0].advance(model, ids)
        rows = [
            state.advance(model, ids[row : row + 1, :count]) if count else None
            for row, (state, count) in enumerate(zip(self.states, num_real, strict=True))
        ]
        like = next(row for row in rows if row is not None)
        return mx.concatenate([_padded(row, ids.shape[1], like) for row in rows], axis=1)


def _padded(logits: mx.array | None, width: int, like: mx.array) -> mx.array:
    """(1, L, V) or nothing to (1, width, V)."""
    num_missing = width if logits is None else width - logits.shape[1]
    if num_missing == 0 and logits is not None:
        return logits
    zeros = mx.zeros((1, num_missing, like.shape[2]), like.dtype)
    return zeros if logits is None else mx.concatenate([logits, zeros], axis=1)
