"""The always-right group forms: rows' own states, one after the other.

For a lone row nothing is sliced and nothing is joined, so that it computes exactly what the row alone computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import mlx.core as mx

from phyla.kv.kinds import KeyValueCache, KeyValueReader, LatentCache, RecurrentCache
from phyla.kv.mask import Bidirectional, Causal, Explicit, Mask, RowLengths, Windowed
from phyla.kv.state import LayerState

if TYPE_CHECKING:
    from phyla.kv.kinds import NumReal, Recurrence


class RowStorage(LayerState, Protocol):
    """A row's state that can say which arrays make it real."""

    def buffers(self) -> list[mx.array]:
        """The arrays to evaluate so that everything appended is real."""
        ...


class KeyValueRow(RowStorage, KeyValueCache, Protocol):
    """A row's keys and values, speaking the kind's protocol for that row alone (B = 1)."""


class RecurrentRow(RowStorage, RecurrentCache, Protocol):
    """A row's recurrence, speaking the kind's protocol for that row alone (B = 1)."""


class LatentRow(RowStorage, LatentCache, Protocol):
    """A row's latent planes, speaking the kind's protocol for that row alone (B = 1)."""


RowT = TypeVar("RowT", bound=RowStorage)


class RowLoop(Generic[RowT]):
    """What every kind's loop has in common. Kinds that outside families invent may start from it too."""

    def __init__(self, states: Sequence[RowT]) -> None:
        self.states = tuple(states)
        self._opened: set[int] = set()

    @property
    def num_tokens(self) -> list[int]:
        return [state.num_tokens for state in self.states]

    def open_window(self, num_tokens: Sequence[int]) -> None:
        for row, (state, count) in enumerate(zip(self.states, num_tokens, strict=True)):
            if count > 0:
                state.open_window(count)
                self._opened.add(row)

    def keep(self, num_kept: Sequence[int]) -> None:
        for row, (state, count) in enumerate(zip(self.states, num_kept, strict=True)):
            if row in self._opened:
                state.keep(count)
        self._opened.clear()

    def evaluate(self) -> list[mx.array]:
        return [buffer for state in self.states for buffer in state.buffers()]


class KeyValueLoop(RowLoop[KeyValueRow]):
    """Loop form of full and sliding layers."""

    def append(self, keys: mx.array, values: mx.array, num_real: NumReal) -> None:
        if len(self.states) == 1:
            return self.states[0].append(keys, values, num_real)
        for row, state in enumerate(self.states):
            state.append(keys[row : row + 1], values[row : row + 1], (num_real[row],))
        return None

    def attend(self, queries: mx.array, mask: Mask, num_real: NumReal, sinks: mx.array | None = None) -> mx.array:
        if len(self.states) == 1:
            return self.states[0].attend(queries, mask, num_real, sinks)
        return self.reader().attend(queries, mask, num_real, sinks)

    def reader(
        self, scale: float | None = None, softcap: float | None = None, includes_step: bool = True
    ) -> KeyValueLoopReader:
        return KeyValueLoopReader([state.reader(scale, softcap, includes_step) for state in self.states], includes_step)


class KeyValueLoopReader:
    """Reads each row's storage for that row's queries."""

    def __init__(self, readers: Sequence[KeyValueReader], includes_step: bool) -> None:
        self._readers = tuple(readers)
        self._includes_step = includes_step

    @property
    def includes_step(self) -> bool:
        return self._includes_step

    def attend(self, queries: mx.array, mask: Mask, num_real: NumReal, sinks: mx.array | None = None) -> mx.array:
        if len(self._readers) == 1:
            return self._readers[0].attend(queries, mask, num_real, sinks)
        attended = [
            reader.attend(queries[row : row + 1], _mask_of_row(mask, row), (num_real[row],), sinks)
            for row, reader in enumerate(self._readers)
        ]
        return mx.concatenate(attended, axis=0)


class RecurrentLoop(RowLoop[RecurrentRow]):
    """Loop form of recurrent layers."""

    def advance(self, inputs: Mapping[str, mx.array], recurrence: Recurrence, num_real: NumReal) -> mx.array:
        if len(self.states) == 1:
            return self.states[0].advance(inputs, recurrence, num_real)
        outputs = [
            state.advance({name: one[row : row + 1] for name, one in inputs.items()}, recurrence, (num_real[row],))
            for row, state in enumerate(self.states)
        ]
        return mx.concatenate(outputs, axis=0)


class LatentLoop(RowLoop[LatentRow]):
    """Loop form of latent layers."""

    def append(self, planes: Mapping[str, mx.array], num_real: NumReal) -> None:
        if len(self.states) == 1:
            return self.states[0].append(planes, num_real)
        for row, state in enumerate(self.states):
            state.append({name: one[row : row + 1] for name, one in planes.items()}, (num_real[row],))
        return None

    def select(
        self, queries: mx.array, weights: mx.array, num_selected: int, mask: Mask, num_real: NumReal
    ) -> mx.array:
        if len(self.states) == 1:
            return self.states[0].select(queries, weights, num_selected, mask, num_real)
        chosen = [
            state.select(
                queries[row : row + 1], weights[row : row + 1], num_selected, _mask_of_row(mask, row), (num_real[row],)
            )
            for row, state in enumerate(self.states)
        ]
        return mx.concatenate(chosen, axis=0)

    def attend(self, queries: mx.array, mask: Mask, num_real: NumReal, selected: mx.array | None = None) -> mx.array:
        if len(self.states) == 1:
            return self.states[0].attend(queries, mask, num_real, selected)
        attended = [
            state.attend(
                queries[row : row + 1],
                _mask_of_row(mask, row),
                (num_real[row],),
                None if selected is None else selected[row : row + 1],
            )
            for row, state in enumerate(self.states)
        ]
        return mx.concatenate(attended, axis=0)


def mask_of_rows(mask: Mask, rows: slice) -> Mask:
    """What of a group's mask is about some of its rows."""
    if isinstance(mask, RowLengths):
        within: Causal | Windowed | Bidirectional = mask.within
        return RowLengths(mask.lengths[rows], within)
    if isinstance(mask, Explicit) and mask.allowed.ndim == 4 and mask.allowed.shape[0] > 1:
        return Explicit(mask.allowed[rows])
    return mask


def _mask_of_row(mask: Mask, row: int) -> Mask:
    return mask_of_rows(mask, slice(row, row + 1))
