"""Keys and values of all rows of a bay in one buffer: full layers, and sliding ones as a ring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import mlx.core as mx

from phyla.kv.group_append import APPENDS
from phyla.kv.group_attention import ATTENTIONS, GroupAttention, Scoring
from phyla.kv.group_geometry import append_geometry, attention_geometry, usable_append, usable_attention
from phyla.kv.rotated_append import rotate_and_store
from phyla.kv.stacked.joined import KeyValueJoined
from phyla.kv.stacked.source import Seated, runs
from phyla.kv.state import StateArrays

if TYPE_CHECKING:
    from phyla.kv.kinds import NumReal
    from phyla.kv.layer_spec import LayerSpec
    from phyla.kv.mask import Mask
    from phyla.kv.rotation import Rotation
    from phyla.kv.stacked.seating import Seating
    from phyla.kv.state import LayerState

PLANES = ("keys", "values")
USUAL_APPEND, USUAL_ATTENTION = "scatter", "grouped"
"""Strategies that run everywhere and are fast on most devices."""


class KeyValueStack:
    """(seats, heads, columns, width) of keys and of values.

    A token lies at its position modulo the number of columns. A full layer has a column for each token of the bay's
    capacity, so nothing wraps. A sliding layer has as many as its window and the widest step together: a step, drafts
    and padding included, then overwrites only what no query sees any more, and taking drafts back moves a number.

    Args:
        layer: whose storage this is.
        seating: of the bay.
    """

    def __init__(self, layer: LayerSpec, seating: Seating) -> None:
        self.layer = layer
        self.seating = seating
        self._planes: list[mx.array] = []
        self.num_columns = seating.capacity
        if layer.window is not None:
            self.num_columns = min(seating.capacity, layer.window + seating.room)
        self._append_name = self._chosen_append()
        self._attentions: dict[bool, GroupAttention] = {}

    @property
    def traces_windows(self) -> bool:
        return True

    @property
    def num_tokens(self) -> Sequence[int]:
        return self.seating.num_tokens

    @property
    def wraps(self) -> bool:
        return self.num_columns < self.seating.capacity

    @property
    def owned_bytes(self) -> int:
        return sum(plane.nbytes for plane in self._planes)

    def append(self, keys: mx.array, values: mx.array, num_real: NumReal) -> None:
        if not self._planes:
            self._planes = self._empty((keys, values), self.seating.num_seats)
        columns = self.seating.columns(keys.shape[2], self.num_columns)
        # In place, once the step is evaluated: nobody else holds the planes that these are made from.
        append = APPENDS.get(self._append_name, APPENDS[USUAL_APPEND])
        self._planes = [append(plane, columns, rows) for plane, rows in zip(self._planes, (keys, values), strict=True)]

    @property
    def rotates(self) -> bool:
        # A row's very first token makes the planes, in the usual way.
        return self._append_name == "rotated" and bool(self._planes)

    def rotate_and_store(self, projected: mx.array, rotation: Rotation, offsets: mx.array) -> mx.array:
        queries, self._planes = rotate_and_store(projected, self._planes, rotation, offsets, self.seating.starts)
        return queries

    def attend(self, queries: mx.array, mask: Mask, num_real: NumReal, sinks: mx.array | None = None) -> mx.array:
        return self.reader().attend(queries, mask, num_real, sinks)

    def reader(
        self, scale: float | None = None, softcap: float | None = None, includes_step: bool = True
    ) -> KeyValueStackReader:
        layer = self.layer
        return KeyValueStackReader(
            self,
            layer.scale if scale is None else scale,
            layer.softcap if softcap is None else softcap,
            includes_step,
        )

    def attention(self, *, is_capped: bool) -> GroupAttention:
        """The fastest way to attend over this buffer that can do what a layer asks for."""
        if is_capped not in self._attentions:
            self._attentions[is_capped] = self._chosen_attention(is_capped=is_capped)
        return self._attentions[is_capped]

    def open_window(self, num_tokens: Sequence[int]) -> None:
        """Where rows stand is the seating's; what they appended stays."""

    def keep(self, num_kept: Sequence[int]) -> None:
        """Where rows stand is the seating's; what is behind it is overwritten."""

    def evaluate(self) -> list[mx.array]:
        return list(self._planes)

    def replace(self, buffers: Sequence[mx.array]) -> None:
        self._planes = list(buffers)

    def fill(self, sources: Sequence[Seated | LayerState | None]) -> None:
        parts: list[list[mx.array] | int] = []
        for run in runs(sources):
            if isinstance(run, int):
                parts.append(run)
            elif isinstance(run, tuple):
                stack, seats = run
                parts.append(self._moved(stack, seats) if stack.evaluate() else len(seats))
            else:
                parts.append(self._columns_of(run) or 1)
        like = next((part for part in parts if not isinstance(part, int)), None)
        if like is None:
            return
        filled = [self._empty(like, part) if isinstance(part, int) else part for part in parts]
        # A copy of a lone part: it may be a view of the buffer that it came from.
        self._planes = [
            mx.concatenate(list(rows), axis=0) if len(rows) > 1 else mx.array(rows[0])
            for rows in zip(*filled, strict=True)
        ]

    def seat(self, index: int, state: LayerState) -> None:
        rows = self._columns_of(state)
        if rows is None:
            return
        if not self._planes:
            self._planes = self._empty(rows, self.seating.num_seats)
        for plane, one in zip(self._planes, rows, strict=True):
            plane[index : index + 1] = one

    def stand(self, index: int) -> StateArrays:
        num_tokens, window = self.seating.num_tokens[index], self.layer.window
        num_columns = num_tokens if window is None else min(num_tokens, window)
        facts = {"num_tokens": num_tokens}
        if window is not None:
            facts |= {"num_columns": num_columns, "cursor": num_columns}
        if num_tokens == 0:
            return StateArrays({}, facts)
        rows = [
            _turned(plane[index : index + 1], num_tokens - num_columns, num_columns, self.num_columns)
            for plane in self._planes
        ]
        return StateArrays(dict(zip(PLANES, rows, strict=True)), facts)

    @classmethod
    def joined(cls, stacks: Sequence[Self]) -> KeyValueJoined:
        return KeyValueJoined(stacks)

    def _chosen_append(self) -> str:
        strategies = self.seating.strategies
        if strategies is None:
            return USUAL_APPEND
        geometry = append_geometry(self.layer, self.seating.num_seats, self.num_columns)
        return strategies.choose(geometry, usable_append(self.layer, wraps=self.wraps)).name

    def _chosen_attention(self, *, is_capped: bool) -> GroupAttention:
        strategies = self.seating.strategies
        if strategies is None:
            return ATTENTIONS[USUAL_ATTENTION]
        geometry = attention_geometry(self.layer, self.seating.num_seats, self.num_columns)
        return ATTENTIONS[
            strategies.choose(geometry, usable_attention(self.layer, is_capped=is_capped, is_stacked=True)).name
        ]

    def _columns_of(self, state: LayerState) -> list[mx.array] | None:
        """A resident row's tokens where this buffer has them, zeros elsewhere; None of an empty row."""
        flat = state.arrays()
        if not flat.arrays:
            return None
        rows = [flat.arrays[name] for name in PLANES]
        held = rows[0].shape[2]
        # A resident ring that has wrapped has its oldest column at the cursor.
        cursor = int(flat.facts.get("cursor", held))
        first = state.num_tokens - held
        return [_padded(mx.roll(one, -cursor, 2), self.num_columns, first) for one in rows]

    def _moved(self, stack: Self, seats: Sequence[int]) -> list[mx.array]:
        """Some of another buffer's rows where this one has their tokens."""
        old = [_rows(plane, seats) for plane in stack.evaluate()]
        if not self.wraps and not stack.wraps:
            return [_padded(one[:, :, : self.num_columns], self.num_columns, 0) for one in old]
        if self.num_columns == stack.num_columns:
            return old
        ends = mx.array([stack.seating.num_tokens[seat] for seat in seats], dtype=mx.int32)[:, None]
        columns = mx.arange(self.num_columns, dtype=mx.int32)[None]
        held = ends - 1 - (ends - 1 - columns) % self.num_columns
        index = (held % stack.num_columns)[:, None, :, None]
        return [
            mx.take_along_axis(one, mx.broadcast_to(index, (*one.shape[:2], self.num_columns, one.shape[3])), axis=2)
            for one in old
        ]

    def _empty(self, like: Sequence[mx.array], num_seats: int) -> list[mx.array]:
        return [mx.zeros((num_seats, one.shape[1], self.num_columns, one.shape[3]), dtype=one.dtype) for one in like]


class KeyValueStackReader:
    """Attends over a bay's buffer with another layer's scale and softcap; never appends."""

    def __init__(self, stack: KeyValueStack, scale: float, softcap: float | None, includes_step: bool) -> None:
        self._stack = stack
        self._scale = scale
        self._softcap = softcap
        self._includes_step = includes_step

    @property
    def includes_step(self) -> bool:
        return self._includes_step

    def attend(self, queries: mx.array, mask: Mask, num_real: NumReal, sinks: mx.array | None = None) -> mx.array:
        stack = self._stack
        keys, values = stack.evaluate()
        reach = stack.seating.reach(queries.shape[2], stack.num_columns)
        if reach < stack.num_columns:
            keys, values = keys[:, :, :reach], values[:, :, :reach]
        visible = stack.seating.visible(
            mask,
            queries.shape[2],
            stack.num_columns,
            reach,
            num_real=num_real,
            includes_step=self._includes_step,
            window=stack.layer.window,
            wraps=stack.wraps,
        )
        scoring = Scoring(self._scale, self._softcap, sinks)
        return stack.attention(is_capped=self._softcap is not None)(queries, keys, values, visible, scoring)


def _rows(plane: mx.array, seats: Sequence[int]) -> mx.array:
    """Those rows of a buffer; may be a view of it."""
    first = seats[0]
    if list(seats) == list(range(first, first + len(seats))):
        return plane[first : first + len(seats)]
    return plane[mx.array(list(seats), dtype=mx.int32)]


def _padded(rows: mx.array, num_columns: int, first: int) -> mx.array:
    """(B, heads, n, width) to `num_columns` columns, the first of them in column `first` modulo their number."""
    missing = num_columns - rows.shape[2]
    if missing > 0:
        nothing = mx.zeros((*rows.shape[:2], missing, rows.shape[3]), dtype=rows.dtype)
        rows = mx.concatenate([rows, nothing], axis=2)
    shift = first % num_columns
    return mx.roll(rows, shift, 2) if shift else rows


def _turned(row: mx.array, first: int, count: int, num_columns: int) -> mx.array:
    """`count` columns from position `first` on, in order and in bytes of their own."""
    start = first % num_columns
    if start + count <= num_columns:
        return mx.array(row[:, :, start : start + count])
    return mx.concatenate([row[:, :, start:], row[:, :, : start + count - num_columns]], axis=2)
