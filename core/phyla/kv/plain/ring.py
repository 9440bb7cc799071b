"""Plain storage of a sliding-window layer: a ring that forgets what no query will see again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import mlx.core as mx

from phyla.errors import CannotRewind, UnsupportedScheme
from phyla.kv.loops import KeyValueLoop
from phyla.kv.plain.attention import attend
from phyla.kv.plain.columns import RingColumns
from phyla.kv.plain.flat import checked_planes
from phyla.kv.plain.visible import kernel_mask
from phyla.kv.stacked.key_values import KeyValueStack
from phyla.kv.state import StackedState, StateArrays

if TYPE_CHECKING:
    from phyla.kv.kinds import NumReal
    from phyla.kv.layer_spec import LayerSpec
    from phyla.kv.mask import Mask
    from phyla.kv.stacked.seating import Seating


@dataclass
class _Window:
    """The ring from before the window, and what was appended since: a wrapped ring can't be wound back."""

    before: RingColumns
    steps: list[tuple[mx.array, mx.array, int]] = field(default_factory=list)

    @property
    def num_appended(self) -> int:
        return sum(num_real for _, _, num_real in self.steps)

    def replayed(self, num_kept: int) -> RingColumns:
        """The ring as if only the first `num_kept` tokens had come, in steps of the same width."""
        assert 0 <= num_kept <= self.num_appended, "more kept than appended"
        ring, left = self.before.clone(), num_kept
        for keys, values, num_real in self.steps:
            if left == 0:
                break
            ring.append((keys, values), min(left, num_real))
            left -= min(left, num_real)
        return ring


class RingState:
    """Keys and values of one row. Bit for bit what mlx-lm's `RotatingKVCache(keep=0)` stores and attends to."""

    def __init__(self, layer: LayerSpec) -> None:
        if layer.window is None or layer.window < 1:
            raise UnsupportedScheme(f"Sliding layer {layer.index} has no window; its LayerSpec must give one.")
        self.layer = layer
        self._ring = RingColumns(layer.window)
        self._window: _Window | None = None
        self.attends_in_blocks = False

    @property
    def num_tokens(self) -> int:
        return self._ring.num_tokens

    @property
    def owned_bytes(self) -> int:
        held = self._ring.num_bytes
        if self._window is not None:
            held += self._window.before.num_bytes
            held += sum(keys.nbytes + values.nbytes for keys, values, _ in self._window.steps)
        return held

    def append(self, keys: mx.array, values: mx.array, num_real: NumReal) -> None:
        if self._window is not None:
            self._window.steps.append((keys[:], values[:], num_real[0]))
        self._ring.append((keys, values), num_real[0])

    def attend(self, queries: mx.array, mask: Mask, num_real: NumReal, sinks: mx.array | None = None) -> mx.array:
        return self.reader().attend(queries, mask, num_real, sinks)

    def reader(
        self, scale: float | None = None, softcap: float | None = None, includes_step: bool = True
    ) -> RingReader:
        layer = self.layer
        return RingReader(
            self,
            layer.scale if scale is None else scale,
            layer.softcap if softcap is None else softcap,
            includes_step,
        )

    @property
    def ring(self) -> RingColumns:
        return self._ring

    @property
    def forgets(self) -> bool:
        return True

    def open_window(self, num_tokens: int) -> None:
        assert self._window is None, "windows don't nest"
        self._window = _Window(self._ring.clone())

    def keep(self, num_kept: int) -> None:
        assert self._window is not None, "no window is open"
        if num_kept < self._window.num_appended:
            self._ring = self._window.replayed(num_kept)
        self._window = None

    def clone_at(self, num_kept: int) -> Self:
        assert self._window is not None, "no window is open"
        copy = type(self)(self.layer)
        copy._ring = self._window.replayed(num_kept)
        return copy

    def clone(self, num_tokens: int | None = None) -> Self:
        length = self.num_tokens if num_tokens is None else num_tokens
        if not self.can_rewind_to(length):
            raise CannotRewind(
                f"Layer {self.layer.index} holds the last {self._ring.num_used} of {self.num_tokens} tokens; "
                f"what a state of {length} tokens needs is partly overwritten."
            )
        copy = type(self)(self.layer)
        copy._ring = self._ring.clone()
        copy._ring.rewind(length)
        return copy

    def can_rewind_to(self, num_tokens: int) -> bool:
        return self._ring.can_rewind_to(num_tokens)

    def arrays(self) -> StateArrays:
        num_columns, cursor, planes = self._ring.copied()
        named = dict(zip(("keys", "values"), planes, strict=True)) if planes else {}
        return StateArrays(named, {"num_tokens": self.num_tokens, "num_columns": num_columns, "cursor": cursor})

    def adopt(self, arrays: StateArrays) -> None:
        assert self.num_tokens == 0, "only an empty state adopts"
        facts = arrays.facts
        planes = checked_planes(self.layer, arrays, int(facts["num_columns"]))
        columns = (planes["keys"], planes["values"]) if planes else ()
        self._ring.restore(columns, int(facts["num_tokens"]), int(facts["num_columns"]), int(facts["cursor"]))

    def buffers(self) -> list[mx.array]:
        return self._ring.buffers()

    @classmethod
    def loop(cls, states: Sequence[Self]) -> KeyValueLoop:
        return KeyValueLoop(states)

    def stacked(self, seating: Seating) -> StackedState | None:
        return KeyValueStack(self.layer, seating)


class RingReader:
    """Attends over a row's ring with another layer's scale and softcap; never appends."""

    def __init__(self, state: RingState, scale: float, softcap: float | None, includes_step: bool) -> None:
        self._state = state
        self._scale = scale
        self._softcap = softcap
        self._includes_step = includes_step

    @property
    def includes_step(self) -> bool:
        return self._includes_step

    def attend(self, queries: mx.array, mask: Mask, num_real: NumReal, sinks: mx.array | None = None) -> mx.array:
        _, num_heads, width, _ = queries.shape
        if num_real[0] == 0:
            # A dead row's step isn't stored, so there may be nothing to look at; what comes out is arbitrary.
            return mx.zeros((1, num_heads, width, self._state.layer.plane("values").width), dtype=queries.dtype)
        (keys, values), columns = self._state.ring.columns(width, num_real[0], self._includes_step)
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
