"""What encoded layers of both kinds have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Self

import mlx.core as mx

from phyla.errors import CannotRewind, LayoutError
from phyla.kv.encoded.columns import ColumnStore, ConvertingColumns
from phyla.kv.encoded.encoding import PlainEncoding, Stored
from phyla.kv.loops import KeyValueLoop
from phyla.kv.plain.flat import checked_planes
from phyla.kv.plain.visible import kernel_mask
from phyla.kv.state import StackedState, StateArrays

if TYPE_CHECKING:
    from phyla.kv.encoded.encoding import Encoding
    from phyla.kv.kinds import NumReal
    from phyla.kv.layer_spec import LayerSpec
    from phyla.kv.mask import Mask
    from phyla.kv.stacked.seating import Seating


class EncodedState:
    """Keys and values of one row, encoded once the row is long enough. A kind says where columns lie."""

    def __init__(self, layer: LayerSpec, encoding: Encoding, start: int = 0) -> None:
        self.layer = layer
        self.encoding = encoding
        self.start = start
        self.columns = self._empty()

    def new_store(self) -> ColumnStore:
        """Where this kind puts its columns."""
        raise AssertionError("a kind brings its own store")

    @property
    def num_tokens(self) -> int:
        return self.columns.num_tokens

    def append(self, keys: mx.array, values: mx.array, num_real: NumReal) -> None:
        self.columns.append(keys, values, num_real[0])

    def attend(self, queries: mx.array, mask: Mask, num_real: NumReal, sinks: mx.array | None = None) -> mx.array:
        return self.reader().attend(queries, mask, num_real, sinks)

    def reader(
        self, scale: float | None = None, softcap: float | None = None, includes_step: bool = True
    ) -> EncodedReader:
        layer = self.layer
        return EncodedReader(
            self,
            layer.scale if scale is None else scale,
            layer.softcap if softcap is None else softcap,
            includes_step,
        )

    def clone(self, num_tokens: int | None = None) -> Self:
        length = self.num_tokens if num_tokens is None else num_tokens
        if not self.can_rewind_to(length):
            raise CannotRewind(
                f"Layer {self.layer.index} holds {self.num_tokens} tokens, encoded from {self.columns.converted_at} "
                f"on; a state of {length} tokens can't be had from it."
            )
        return self._copied(self.columns, length)

    def can_rewind_to(self, num_tokens: int) -> bool:
        return self.columns.can_rewind_to(num_tokens)

    def arrays(self) -> StateArrays:
        num_columns, cursor, planes = self.columns.store.copied()
        names = [plane.name for plane in self.columns.form.planes]
        facts = {"num_tokens": self.num_tokens, "num_columns": num_columns, "cursor": cursor, **self.columns.facts()}
        return StateArrays(dict(zip(names, planes, strict=True)) if planes else {}, facts)

    def adopt(self, arrays: StateArrays) -> None:
        assert self.num_tokens == 0, "only an empty state adopts"
        facts = arrays.facts
        if "converted_at" not in facts:
            raise LayoutError(f"Layer {self.layer.index} is stored encoded; the arrays were made by another scheme.")
        self.columns.converted_at = facts["converted_at"]
        form = self.columns.form.planes
        num_columns = int(facts["num_columns"])
        planes = checked_planes(replace(self.layer, planes=tuple(form)), arrays, num_columns)
        ordered = tuple(planes[plane.name] for plane in form) if planes else ()
        self.columns.store.restore(ordered, int(facts["num_tokens"]), num_columns, int(facts["cursor"]))

    def buffers(self) -> list[mx.array]:
        return self.columns.store.buffers()

    @classmethod
    def loop(cls, states: Sequence[Self]) -> KeyValueLoop:
        return KeyValueLoop(states)  # type: ignore[arg-type]

    def stacked(self, seating: Seating) -> StackedState | None:
        return None

    def _empty(self) -> ConvertingColumns:
        return ConvertingColumns(self.new_store(), PlainEncoding(self.layer), self.encoding, self.start)

    def _copied(self, columns: ConvertingColumns, num_tokens: int) -> Self:
        copy = type(self)(self.layer, self.encoding, self.start)
        if num_tokens > 0:
            copy.columns = columns.clone()
            copy.columns.store.rewind(num_tokens)
        return copy


class EncodedReader:
    """Attends over a row's storage with another layer's scale and softcap; never appends."""

    def __init__(self, state: EncodedState, scale: float, softcap: float | None, includes_step: bool) -> None:
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
            # A dead row's step may not be stored, so there may be nothing to look at; what comes out is arbitrary.
            return mx.zeros((1, num_heads, width, self._state.layer.plane("values").width), dtype=queries.dtype)
        columns = self._state.columns
        buffers, described = columns.store.columns(width, num_real[0], self._includes_step)
        stored, lowered = Stored(buffers, described.num_columns), kernel_mask(mask, described)
        return columns.form.attend(queries, stored, lowered, scale=self._scale, softcap=self._softcap, sinks=sinks)
