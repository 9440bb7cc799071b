"""What all rows of a bay have folded their past into, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import mlx.core as mx

from phyla.kv.stacked.joined import RecurrentJoined
from phyla.kv.stacked.source import Seated, runs
from phyla.kv.state import StateArrays

if TYPE_CHECKING:
    from phyla.kv.kinds import NumReal, Recurrence, State
    from phyla.kv.layer_spec import LayerSpec
    from phyla.kv.stacked.seating import Seating
    from phyla.kv.state import LayerState


@dataclass(frozen=True)
class _Step:
    """One step's inputs: all that its part of the state depends on."""

    inputs: Mapping[str, mx.array]
    recurrence: Recurrence
    num_real: NumReal


@dataclass
class _Window:
    """The rows from before the window, and the steps since."""

    folded: State
    steps: list[_Step] = field(default_factory=list)


class RecurrentStack:
    """Named arrays with a seat per row. A row that hasn't begun is zeros, which is what every recurrence starts from.

    Args:
        layer: whose storage this is.
        seating: of the bay.
    """

    def __init__(self, layer: LayerSpec, seating: Seating) -> None:
        self.layer = layer
        self.seating = seating
        self._folded: State = {}
        self._window: _Window | None = None

    @property
    def traces_windows(self) -> bool:
        return False  # what a window would be replayed from is kept on the side

    @property
    def num_tokens(self) -> Sequence[int]:
        return self.seating.num_tokens

    @property
    def owned_bytes(self) -> int:
        held = sum(one.nbytes for one in self._folded.values())
        if self._window is not None:
            held += sum(one.nbytes for one in self._window.folded.values())
            held += sum(one.nbytes for step in self._window.steps for one in step.inputs.values())
        return held

    def advance(self, inputs: Mapping[str, mx.array], recurrence: Recurrence, num_real: NumReal) -> mx.array:
        if self._window is not None:
            self._window.steps.append(_Step(dict(inputs), recurrence, num_real))
        width = next(iter(inputs.values())).shape[1]
        if all(real == width for real, is_taken in zip(num_real, self.seating.is_taken, strict=True) if is_taken):
            # A dead seat may move: it holds nobody's state, and a step without padding needs no masks.
            num_real = (width,) * len(num_real)
        return self._run(inputs, recurrence, num_real)

    def open_window(self, num_tokens: Sequence[int]) -> None:
        assert self._window is None, "windows don't nest"
        self._window = _Window(self._folded)

    def keep(self, num_kept: Sequence[int]) -> None:
        assert self._window is not None, "no window is open"
        window, self._window = self._window, None
        appended = [sum(counts) for counts in zip(*(step.num_real for step in window.steps), strict=True)]
        if not appended or list(num_kept) == appended:
            return
        self._folded, left = window.folded, list(num_kept)
        for step in window.steps:
            taken = tuple(min(one, real) for one, real in zip(left, step.num_real, strict=True))
            left = [one - gone for one, gone in zip(left, taken, strict=True)]
            if any(taken):
                self._run(step.inputs, step.recurrence, taken)

    def evaluate(self) -> list[mx.array]:
        return list(self._folded.values())

    def replace(self, buffers: Sequence[mx.array]) -> None:
        self._folded = dict(zip(self._folded, buffers, strict=True))

    def fill(self, sources: Sequence[Seated | LayerState | None]) -> None:
        parts: list[State | int] = []
        for run in runs(sources):
            if isinstance(run, int):
                parts.append(run)
            elif isinstance(run, tuple):
                stack, seats = run
                index = mx.array(seats, dtype=mx.int32)
                parts.append({name: one[index] for name, one in stack.folded.items()} or len(seats))
            else:
                parts.append(dict(run.arrays().arrays) or 1)
        like = next((part for part in parts if not isinstance(part, int)), None)
        if like is None:
            return
        filled = [_zeros(like, part) if isinstance(part, int) else part for part in parts]
        self._folded = {name: mx.concatenate([part[name] for part in filled], axis=0) for name in like}

    def seat(self, index: int, state: LayerState) -> None:
        row = dict(state.arrays().arrays)
        if not self._folded:
            self._folded = _zeros(row, self.seating.num_seats)
        for name, one in self._folded.items():
            one[index] = row[name][0] if row else 0

    def stand(self, index: int) -> StateArrays:
        num_tokens = self.seating.num_tokens[index]
        held = self._folded.items() if num_tokens else ()
        return StateArrays({name: mx.array(one[index : index + 1]) for name, one in held}, {"num_tokens": num_tokens})

    @property
    def folded(self) -> State:
        """The rows' arrays; nothing to hold on to."""
        return self._folded

    @classmethod
    def joined(cls, stacks: Sequence[Self]) -> RecurrentJoined:
        return RecurrentJoined(stacks)

    def _run(self, inputs: Mapping[str, mx.array], recurrence: Recurrence, num_real: NumReal) -> mx.array:
        outputs, folded = recurrence(inputs, self._folded, num_real)
        # Contiguous: the tail of a wide step's inputs would otherwise keep all of them alive.
        self._folded = {name: mx.contiguous(one) for name, one in folded.items()}
        return outputs


def _zeros(like: State, num_seats: int) -> State:
    return {name: mx.zeros((num_seats, *one.shape[1:]), dtype=one.dtype) for name, one in like.items()}
