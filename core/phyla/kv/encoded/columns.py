"""One row's columns, plain at first and encoded later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, Self

import mlx.core as mx

from phyla.kv.plain.columns import Planes
from phyla.kv.plain.slab import Slab
from phyla.kv.plain.visible import StepColumns

if TYPE_CHECKING:
    from phyla.kv.encoded.encoding import Encoding


class ColumnStore(Protocol):
    """Where planes lie and which columns stand for which tokens; `RingColumns` is one, `SlabColumns` the other."""

    num_tokens: int

    @property
    def num_bytes(self) -> int: ...
    def append(self, planes: Sequence[mx.array], num_real: int) -> None: ...
    def columns(self, width: int, num_real: int, includes_step: bool) -> tuple[Planes, StepColumns]:
        """Planes with as many columns as the second says, or with room for more behind them."""
        ...

    def can_rewind_to(self, num_tokens: int) -> bool: ...
    def rewind(self, num_tokens: int) -> None: ...
    def clone(self) -> Self: ...
    def converted(self, convert: Callable[[Planes], Planes]) -> Self: ...
    def copied(self) -> tuple[int, int, Planes]: ...
    def restore(self, planes: Planes, num_tokens: int, num_used: int, cursor: int) -> None: ...
    def buffers(self) -> list[mx.array]: ...


class SlabColumns:
    """Planes of a layer that keeps everything: column and position are the same number."""

    def __init__(self) -> None:
        self._slabs: tuple[Slab, ...] = ()
        self.num_tokens = 0
        self._step_start = 0
        self._step_width = 0

    @property
    def num_bytes(self) -> int:
        return sum(slab.num_bytes for slab in self._slabs)

    def append(self, planes: Sequence[mx.array], num_real: int) -> None:
        # Padded columns lie behind the count, as in `FullState.append`.
        self._step_start, self._step_width = self.num_tokens, planes[0].shape[2]
        if not self._slabs:
            self._slabs = tuple(Slab() for _ in planes)
        for slab, rows in zip(self._slabs, planes, strict=True):
            slab.write(self.num_tokens, rows)
        self.num_tokens += num_real

    def columns(self, width: int, num_real: int, includes_step: bool) -> tuple[Planes, StepColumns]:
        num_before = self._step_start if includes_step else self.num_tokens
        num_columns = num_before + self._step_width if includes_step else num_before
        described = StepColumns(num_columns, num_before, width, num_real, end=num_before)
        return tuple(self.buffers()), described

    def can_rewind_to(self, num_tokens: int) -> bool:
        return 0 <= num_tokens <= self.num_tokens

    def rewind(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens

    def clone(self) -> Self:
        return self.converted(lambda planes: tuple(plane[:] for plane in planes))

    def converted(self, convert: Callable[[Planes], Planes]) -> Self:
        copy = type(self)()
        copy._slabs = tuple(Slab(plane) for plane in convert(tuple(self.buffers()))) if self._slabs else ()
        copy.num_tokens = self.num_tokens
        return copy

    def copied(self) -> tuple[int, int, Planes]:
        count = self.num_tokens
        return count, count, tuple(slab.copied(count) for slab in self._slabs) if count > 0 else ()

    def restore(self, planes: Planes, num_tokens: int, num_used: int, cursor: int) -> None:
        self._slabs = tuple(Slab(plane) for plane in planes)
        self.num_tokens = num_tokens

    def buffers(self) -> list[mx.array]:
        return [buffer for slab in self._slabs for buffer in slab.buffers()]


@dataclass
class ConvertingColumns:
    """Encodes what it holds at the first append that finds `start` tokens, or more, and any at all.

    So the step that crosses `start` is computed on plain columns throughout, and every later one meets encoded ones:
    the moment at which mlx-lm converts its caches, without anybody having to call at that moment. A conversion that a
    window takes back never happened.
    """

    store: ColumnStore
    plain: Encoding
    encoding: Encoding
    start: int = 0
    converted_at: int | None = None
    """Tokens that were stored when they were encoded; None while they are plain."""

    @property
    def form(self) -> Encoding:
        """What the columns are in now."""
        return self.plain if self.converted_at is None else self.encoding

    @property
    def num_tokens(self) -> int:
        return self.store.num_tokens

    def converts_before(self, num_real: int) -> bool:
        """Whether appending so many tokens encodes what is stored first."""
        return self.converted_at is None and num_real > 0 and self.num_tokens >= max(1, self.start)

    def append(self, keys: mx.array, values: mx.array, num_real: int) -> None:
        if self.converts_before(num_real):
            self.converted_at = self.num_tokens
            self.store = self.store.converted(lambda planes: self.encoding.encode(*planes))
            # Now, layer by layer: otherwise all layers' plain and encoded columns would be alive together.
            mx.eval(self.store.buffers())
        self.store.append(self.form.encode(keys, values), num_real)

    def can_rewind_to(self, num_tokens: int) -> bool:
        """Tokens from before a delayed conversion would have been plain: that state can't be had any more."""
        if num_tokens in (0, self.num_tokens):
            return True
        is_lost = self.start > 0 and self.converted_at is not None and num_tokens < self.converted_at
        return not is_lost and self.store.can_rewind_to(num_tokens)

    def clone(self) -> Self:
        """Fresh handles on the same buffers."""
        return replace(self, store=self.store.clone())

    def facts(self) -> dict[str, Any]:
        """What `arrays` says beside the planes."""
        return {"converted_at": self.converted_at}
