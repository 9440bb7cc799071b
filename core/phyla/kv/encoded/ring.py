"""Encoded storage of a sliding-window layer: a ring of planes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from phyla.errors import UnsupportedScheme
from phyla.kv.encoded.columns import ConvertingColumns
from phyla.kv.encoded.state import EncodedState
from phyla.kv.plain.columns import RingColumns

if TYPE_CHECKING:
    import mlx.core as mx

    from phyla.kv.encoded.encoding import Encoding
    from phyla.kv.kinds import NumReal
    from phyla.kv.layer_spec import LayerSpec


@dataclass
class _Window:
    """The ring from before the window, and the keys and values since: a wrapped ring can't be wound back."""

    before: ConvertingColumns
    steps: list[tuple[mx.array, mx.array, int]] = field(default_factory=list)

    @property
    def num_appended(self) -> int:
        return sum(num_real for _, _, num_real in self.steps)

    def replayed(self, num_kept: int) -> ConvertingColumns:
        """The ring as if only the first `num_kept` tokens had come, in steps of the same width."""
        assert 0 <= num_kept <= self.num_appended, "more kept than appended"
        columns, left = self.before.clone(), num_kept
        for keys, values, num_real in self.steps:
            if left == 0:
                break
            columns.append(keys, values, min(left, num_real))
            left -= min(left, num_real)
        return columns


class EncodedRingState(EncodedState):
    """The columns of `RotatingKVCache(keep=0)`, encoded."""

    def __init__(self, layer: LayerSpec, encoding: Encoding, start: int = 0) -> None:
        if layer.window is None or layer.window < 1:
            raise UnsupportedScheme(f"Sliding layer {layer.index} has no window; its LayerSpec must give one.")
        self._num_visible = layer.window
        super().__init__(layer, encoding, start)
        self._window: _Window | None = None

    def new_store(self) -> RingColumns:
        return RingColumns(self._num_visible)

    @property
    def owned_bytes(self) -> int:
        held = self.columns.store.num_bytes
        if self._window is not None:
            held += self._window.before.store.num_bytes
            held += sum(keys.nbytes + values.nbytes for keys, values, _ in self._window.steps)
        return held

    def append(self, keys: mx.array, values: mx.array, num_real: NumReal) -> None:
        if self._window is not None:
            self._window.steps.append((keys[:], values[:], num_real[0]))
        super().append(keys, values, num_real)

    @property
    def forgets(self) -> bool:
        return True

    def open_window(self, num_tokens: int) -> None:
        assert self._window is None, "windows don't nest"
        self._window = _Window(self.columns.clone())

    def keep(self, num_kept: int) -> None:
        assert self._window is not None, "no window is open"
        if num_kept < self._window.num_appended:
            self.columns = self._window.replayed(num_kept)
        self._window = None

    def clone_at(self, num_kept: int) -> Self:
        assert self._window is not None, "no window is open"
        columns = self._window.replayed(num_kept)
        return self._copied(columns, columns.num_tokens)
