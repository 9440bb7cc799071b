"""Several bays in one step: every projection runs once for all rows, only what looks at storage goes bay by bay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import mlx.core as mx

from phyla.kv.kinds import KeyValueCache, KeyValueReader, RecurrentCache, RotatesAndStores
from phyla.kv.loops import mask_of_rows
from phyla.kv.state import StackedState

if TYPE_CHECKING:
    from phyla.kv.kinds import NumReal, Recurrence
    from phyla.kv.mask import Mask
    from phyla.kv.rotation import Rotation


class KeyValueBay(StackedState, KeyValueCache, RotatesAndStores, Protocol):
    """A bay's keys and values."""


class RecurrentBay(StackedState, RecurrentCache, Protocol):
    """A bay's recurrences."""


BayT = TypeVar("BayT", bound=StackedState)


class Joined(Generic[BayT]):
    """The bays' states of one layer, in the order of their rows on a step's axis B."""

    def __init__(self, bays: Sequence[BayT]) -> None:
        self._bays = tuple(bays)

    @property
    def num_tokens(self) -> list[int]:
        return [count for bay in self._bays for count in bay.num_tokens]

    def open_window(self, num_tokens: Sequence[int]) -> None:
        for bay, rows in self._spans():
            bay.open_window(num_tokens[rows])

    def keep(self, num_kept: Sequence[int]) -> None:
        for bay, rows in self._spans():
            bay.keep(num_kept[rows])

    def evaluate(self) -> list[mx.array]:
        return [array for bay in self._bays for array in bay.evaluate()]

    def _spans(self) -> Iterator[tuple[BayT, slice]]:
        return spans(self._bays)


class KeyValueJoined(Joined[KeyValueBay]):
    """Full and sliding layers."""

    def append(self, keys: mx.array, values: mx.array, num_real: NumReal) -> None:
        for bay, rows in self._spans():
            bay.append(keys[rows], values[rows], num_real[rows])

    @property
    def rotates(self) -> bool:
        return all(bay.rotates for bay in self._bays)

    def rotate_and_store(self, projected: mx.array, rotation: Rotation, offsets: mx.array) -> mx.array:
        by_row = projected.reshape(len(self.num_tokens), -1, projected.shape[1])
        queries = [
            bay.rotate_and_store(by_row[rows].reshape(-1, projected.shape[1]), rotation, offsets[rows])
            for bay, rows in self._spans()
        ]
        return mx.concatenate(queries, axis=0)

    def attend(self, queries: mx.array, mask: Mask, num_real: NumReal, sinks: mx.array | None = None) -> mx.array:
        return self.reader().attend(queries, mask, num_real, sinks)

    def reader(
        self, scale: float | None = None, softcap: float | None = None, includes_step: bool = True
    ) -> KeyValueJoinedReader:
        readers = [(bay.reader(scale, softcap, includes_step), rows) for bay, rows in self._spans()]
        return KeyValueJoinedReader(readers, includes_step)


class KeyValueJoinedReader:
    """Reads each bay's storage for that bay's queries."""

    def __init__(self, readers: Sequence[tuple[KeyValueReader, slice]], includes_step: bool) -> None:
        self._readers = tuple(readers)
        self._includes_step = includes_step

    @property
    def includes_step(self) -> bool:
        return self._includes_step

    def attend(self, queries: mx.array, mask: Mask, num_real: NumReal, sinks: mx.array | None = None) -> mx.array:
        attended = [
            reader.attend(queries[rows], mask_of_rows(mask, rows), num_real[rows], sinks)
            for reader, rows in self._readers
        ]
        return mx.concatenate(attended, axis=0)


class RecurrentJoined(Joined[RecurrentBay]):
    """Recurrent layers."""

    def advance(self, inputs: Mapping[str, mx.array], recurrence: Recurrence, num_real: NumReal) -> mx.array:
        outputs = [
            bay.advance({name: one[rows] for name, one in inputs.items()}, recurrence, num_real[rows])
            for bay, rows in self._spans()
        ]
        return mx.concatenate(outputs, axis=0)


def spans(bays: Sequence[Any]) -> Iterator[tuple[Any, slice]]:
    """Each with its rows' places on axis B; whatever has a `num_tokens` per seat."""
    start = 0
    for bay in bays:
        stop = start + len(bay.num_tokens)
        yield bay, slice(start, stop)
        start = stop
