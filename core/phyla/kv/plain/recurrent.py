"""Plain storage of a recurrent layer: arrays of fixed size, replayed when drafts are taken back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import mlx.core as mx

from phyla.errors import CannotRewind, LayoutError
from phyla.kv.loops import RecurrentLoop
from phyla.kv.stacked.recurrent import RecurrentStack
from phyla.kv.state import StackedState, StateArrays

if TYPE_CHECKING:
    from phyla.kv.kinds import NumReal, Recurrence, State
    from phyla.kv.layer_spec import LayerSpec
    from phyla.kv.stacked.seating import Seating


@dataclass(frozen=True)
class _Step:
    """One step's inputs: all that its part of the state depends on."""

    inputs: Mapping[str, mx.array]
    recurrence: Recurrence
    num_real: int


@dataclass
class _Window:
    """The state from before the window, and the steps since."""

    folded: State
    num_tokens: int
    steps: list[_Step] = field(default_factory=list)

    @property
    def num_appended(self) -> int:
        return sum(step.num_real for step in self.steps)


class RecurrentState:
    """What one row's recurrence has folded its past into. It can't be wound back, only replayed from a window."""

    def __init__(self, layer: LayerSpec) -> None:
        self.layer = layer
        self._folded: State = {}
        self._num_tokens = 0
        self._window: _Window | None = None

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    @property
    def owned_bytes(self) -> int:
        held = sum(one.nbytes for one in self._folded.values())
        if self._window is not None:
            held += sum(one.nbytes for one in self._window.folded.values())
            held += sum(one.nbytes for step in self._window.steps for one in step.inputs.values())
        return held

    def advance(self, inputs: Mapping[str, mx.array], recurrence: Recurrence, num_real: NumReal) -> mx.array:
        step = _Step(dict(inputs), recurrence, num_real[0])
        if self._window is not None:
            self._window.steps.append(step)
        return self._run(step, step.num_real)

    @property
    def forgets(self) -> bool:
        return True

    def open_window(self, num_tokens: int) -> None:
        assert self._window is None, "windows don't nest"
        self._window = _Window(self._folded, self._num_tokens)

    def keep(self, num_kept: int) -> None:
        assert self._window is not None, "no window is open"
        if num_kept < self._window.num_appended:
            self._replay(self._window, num_kept)
        self._window = None

    def clone_at(self, num_kept: int) -> Self:
        assert self._window is not None, "no window is open"
        copy = type(self)(self.layer)
        copy._replay(self._window, num_kept)
        return copy

    def clone(self, num_tokens: int | None = None) -> Self:
        length = self._num_tokens if num_tokens is None else num_tokens
        if not self.can_rewind_to(length):
            raise CannotRewind(
                f"Layer {self.layer.index} is recurrent: it stands at {self._num_tokens} tokens and can't go back "
                f"to {length}. Only retained boundaries can be reused."
            )
        copy = type(self)(self.layer)
        if length > 0:
            copy._folded = {name: one[:] for name, one in self._folded.items()}
            copy._num_tokens = length
        return copy

    def can_rewind_to(self, num_tokens: int) -> bool:
        return num_tokens in (0, self._num_tokens)

    def arrays(self) -> StateArrays:
        held = {name: mx.array(one) for name, one in self._folded.items()}
        return StateArrays(held, {"num_tokens": self._num_tokens})

    def adopt(self, arrays: StateArrays) -> None:
        assert self._num_tokens == 0, "only an empty state adopts"
        length = int(arrays.facts["num_tokens"])
        expected = {plane.name for plane in self.layer.planes if not plane.per_token} if length > 0 else set()
        if set(arrays.arrays) != expected:
            raise LayoutError(
                f"Layer {self.layer.index} (recurrent) keeps {sorted(expected)}; the arrays hold "
                f"{sorted(arrays.arrays)}. They were made for another layout."
            )
        self._folded = {name: one[:] for name, one in arrays.arrays.items()}
        self._num_tokens = length

    def buffers(self) -> list[mx.array]:
        return list(self._folded.values())

    @classmethod
    def loop(cls, states: Sequence[Self]) -> RecurrentLoop:
        return RecurrentLoop(states)

    def stacked(self, seating: Seating) -> StackedState | None:
        return RecurrentStack(self.layer, seating)

    def _run(self, step: _Step, num_real: int) -> mx.array:
        outputs, folded = step.recurrence(step.inputs, self._folded, (num_real,))
        if num_real > 0:
            # Contiguous: the tail of a long prefill's inputs would otherwise keep all of them alive. Of one position
            # there is hardly more than the tail.
            is_long = next(iter(step.inputs.values())).shape[1] > 1
            self._folded = {name: mx.contiguous(one) for name, one in folded.items()} if is_long else folded
            self._num_tokens += num_real
        return outputs

    def _replay(self, window: _Window, num_kept: int) -> None:
        assert 0 <= num_kept <= window.num_appended, "more kept than appended"
        self._folded = {name: one[:] for name, one in window.folded.items()}
        self._num_tokens, left = window.num_tokens, num_kept
        for step in window.steps:
            if left == 0:
                break
            self._run(step, min(left, step.num_real))
            left -= min(left, step.num_real)
