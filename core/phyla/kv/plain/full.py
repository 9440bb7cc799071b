"""Plain storage of a full-attention layer: everything is kept, going back moves a number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import mlx.core as mx

from phyla.errors import CannotRewind
from phyla.kv.loops import KeyValueLoop
from phyla.kv.plain.attention import attend
from phyla.kv.plain.flat import checked_planes
from phyla.kv.plain.slab import Slab
from phyla.kv.plain.visible import StepColumns, kernel_mask
from phyla.kv.stacked.key_values import KeyValueStack
from phyla.kv.state import StackedState, StateArrays

if TYPE_CHECKING:
    from phyla.kv.kinds import NumReal
    from phyla.kv.layer_spec import LayerSpec
    from phyla.kv.mask import Mask
    from phyla.kv.stacked.seating import Seating


class FullState:
    """Keys and values of one row. Bit for bit what mlx-lm's `KVCache` stores and attends to."""

    def __init__(self, layer: LayerSpec) -> None:
        self.layer = layer
        self._keys = Slab()
        self._values = Slab()
        self._num_tokens = 0
        self._step_start = 0
        self._step_width = 0
        self._window_start: int | None = None
        self.attends_in_blocks = False

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    @property
    def owned_bytes(self) -> int:
        return self._keys.num_bytes + self._values.num_bytes

    def append(self, keys: mx.array, values: mx.array, num_real: NumReal) -> None:
        # Padded columns are written too, behind the count: the step's queries meet the same columns whatever the
        # number of real ones, and the next append overwrites them.
        self._step_start, self._step_width = self._num_tokens, keys.shape[2]
        self._keys.write(self._num_tokens, keys)
        self._values.write(self._num_tokens, values)
        self._num_tokens += num_real[0]

    def attend(self, queries: mx.array, mask: Mask, num_real: NumReal, sinks: mx.array | None = None) -> mx.array:
        layer = self.layer
        keys, values, columns = self.columns(queries.shape[2], num_real[0], includes_step=True)
        lowered = kernel_mask(mask, columns)
        return attend(
            queries,
            keys,
            values,
            lowered,
            scale=layer.scale,
            softcap=layer.softcap,
            sinks=sinks,
            in_blocks=self.attends_in_blocks,
        )

    def reader(
        self, scale: float | None = None, softcap: float | None = None, includes_step: bool = True
    ) -> FullReader:
        layer = self.layer
        return FullReader(
            self,
            layer.scale if scale is None else scale,
            layer.softcap if softcap is None else softcap,
            includes_step,
        )

    def columns(self, width: int, num_real: int, includes_step: bool) -> tuple[mx.array, mx.array, StepColumns]:
        """Keys, values and what their columns stand for, for queries of this step or of one after it."""
        num_before = self._step_start if includes_step else self._num_tokens
        num_columns = num_before + self._step_width if includes_step else num_before
        described = StepColumns(num_columns, num_before, width, num_real, end=num_before)
        return self._keys.view(num_columns), self._values.view(num_columns), described

    @property
    def forgets(self) -> bool:
        return False

    def open_window(self, num_tokens: int) -> None:
        assert self._window_start is None, "windows don't nest"
        self._window_start = self._num_tokens

    def keep(self, num_kept: int) -> None:
        self._num_tokens = self._kept_length(num_kept)
        self._window_start = None

    def clone_at(self, num_kept: int) -> Self:
        return self.clone(self._kept_length(num_kept))

    def clone(self, num_tokens: int | None = None) -> Self:
        length = self._num_tokens if num_tokens is None else num_tokens
        if not self.can_rewind_to(length):
            raise CannotRewind(f"Layer {self.layer.index} holds {self._num_tokens} tokens; asked for {length}.")
        copy = type(self)(self.layer)
        if length > 0:
            copy._keys, copy._values, copy._num_tokens = self._keys.clone(), self._values.clone(), length
        return copy

    def can_rewind_to(self, num_tokens: int) -> bool:
        return 0 <= num_tokens <= self._num_tokens

    def arrays(self) -> StateArrays:
        length = self._num_tokens
        if length == 0:
            return StateArrays({}, {"num_tokens": 0})
        planes = {"keys": self._keys.copied(length), "values": self._values.copied(length)}
        return StateArrays(planes, {"num_tokens": length})

    def adopt(self, arrays: StateArrays) -> None:
        assert self._num_tokens == 0, "only an empty state adopts"
        length = int(arrays.facts["num_tokens"])
        planes = checked_planes(self.layer, arrays, length)
        if length > 0:
            self._keys, self._values = Slab(planes["keys"]), Slab(planes["values"])
        self._num_tokens = length

    def buffers(self) -> list[mx.array]:
        return [*self._keys.buffers(), *self._values.buffers()]

    @classmethod
    def loop(cls, states: Sequence[Self]) -> KeyValueLoop:
        return KeyValueLoop(states)

    def stacked(self, seating: Seating) -> StackedState | None:
        return KeyValueStack(self.layer, seating)

    def _kept_length(self, num_kept: int) -> int:
        assert self._window_start is not None, "no window is open"
        length = self._window_start + num_kept
        assert self._window_start <= length <= self._num_tokens, "more kept than appended"
        return length


class FullReader:
    """Attends over a row's storage with another layer's scale and softcap; never appends."""

    def __init__(self, state: FullState, scale: float, softcap: float | None, includes_step: bool) -> None:
        self._state = state
        self._scale = scale
        self._softcap = softcap
        self._includes_step = includes_step

    @property
    def includes_step(self) -> bool:
        return self._includes_step

    def attend(self, queries: mx.array, mask: Mask, num_real: NumReal, sinks: mx.array | None = None) -> mx.array:
        keys, values, columns = self._state.columns(queries.shape[2], num_real[0], self._includes_step)
        lowered = kernel_mask(mask, columns)
        return attend(
            queries,
            keys,
            values,
            lowered,
            scale=self._scale,
            softcap=self._softcap,
            sinks=sinks,
            in_blocks=self._state.attends_in_blocks,
        )
