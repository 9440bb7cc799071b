"""Encoded storage of a full-attention layer: everything is kept, going back moves a number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from phyla.kv.encoded.columns import ConvertingColumns, SlabColumns
from phyla.kv.encoded.state import EncodedState

if TYPE_CHECKING:
    import mlx.core as mx

    from phyla.kv.encoded.encoding import Encoding
    from phyla.kv.kinds import NumReal
    from phyla.kv.layer_spec import LayerSpec


@dataclass
class _Window:
    """Where a window began, and the columns from before a conversion that happened inside it."""

    start: int
    plain: ConvertingColumns | None = None


class EncodedFullState(EncodedState):
    """With an affine encoding, bit for bit what mlx-lm's `KVCache` that becomes a `QuantizedKVCache` attends to."""

    def __init__(self, layer: LayerSpec, encoding: Encoding, start: int = 0) -> None:
        super().__init__(layer, encoding, start)
        self._window: _Window | None = None

    def new_store(self) -> SlabColumns:
        return SlabColumns()

    @property
    def owned_bytes(self) -> int:
        held = self.columns.store.num_bytes
        if self._window is not None and self._window.plain is not None:
            held += self._window.plain.store.num_bytes
        return held

    def append(self, keys: mx.array, values: mx.array, num_real: NumReal) -> None:
        if self._window is not None and self.columns.converts_before(num_real[0]):
            self._window.plain = self.columns.clone()
        super().append(keys, values, num_real)

    @property
    def forgets(self) -> bool:
        return self.start > 0

    def open_window(self, num_tokens: int) -> None:
        assert self._window is None, "windows don't nest"
        self._window = _Window(self.num_tokens)

    def keep(self, num_kept: int) -> None:
        columns, length = self._kept(num_kept)
        if length == 0:
            columns = self._empty()
        elif length < columns.num_tokens:
            columns.store.rewind(length)
        self.columns, self._window = columns, None

    def clone_at(self, num_kept: int) -> Self:
        return self._copied(*self._kept(num_kept))

    def _kept(self, num_kept: int) -> tuple[ConvertingColumns, int]:
        """The columns that hold what a window's first tokens leave, and how many tokens that are."""
        assert self._window is not None, "no window is open"
        length = self._window.start + num_kept
        assert self._window.start <= length <= self.num_tokens, "more kept than appended"
        plain = self._window.plain
        return (self.columns if plain is None or length > plain.num_tokens else plain), length
