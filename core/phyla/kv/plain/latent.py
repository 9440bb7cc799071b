"""Plain storage of a latent-attention layer: compressed keys, kept per token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Self

import mlx.core as mx

from phyla.errors import CannotRewind
from phyla.kv.kinds import INDEX_PLANE, LATENT_PLANE, ROPE_PLANE
from phyla.kv.loops import LatentLoop
from phyla.kv.plain.flat import checked_planes
from phyla.kv.plain.slab import Slab
from phyla.kv.plain.visible import StepColumns, boolean_mask, kernel_mask
from phyla.kv.state import StackedState, StateArrays

if TYPE_CHECKING:
    from phyla.kv.kinds import NumReal
    from phyla.kv.layer_spec import LayerSpec
    from phyla.kv.mask import Mask
    from phyla.kv.stacked.seating import Seating


class LatentState:
    """Latent, rope and index planes of one row; going back moves a number."""

    def __init__(self, layer: LayerSpec) -> None:
        self.layer = layer
        self._planes = {plane.name: Slab() for plane in layer.planes if plane.per_token}
        self._num_tokens = 0
        self._step_start = 0
        self._step_width = 0
        self._window_start: int | None = None

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    @property
    def owned_bytes(self) -> int:
        return sum(slab.num_bytes for slab in self._planes.values())

    def append(self, planes: Mapping[str, mx.array], num_real: NumReal) -> None:
        # Padded columns lie behind the count, as in `FullState.append`.
        self._step_start, self._step_width = self._num_tokens, planes[LATENT_PLANE].shape[2]
        for name, slab in self._planes.items():
            slab.write(self._num_tokens, planes[name])
        self._num_tokens += num_real[0]

    def select(
        self, queries: mx.array, weights: mx.array, num_selected: int, mask: Mask, num_real: NumReal
    ) -> mx.array:
        columns = self._columns(queries.shape[2], num_real[0])
        keys = self._planes[INDEX_PLANE].view(columns.num_columns).astype(mx.float32)
        scores = mx.maximum(queries.astype(mx.float32) @ keys.swapaxes(-1, -2), 0)
        scores = (scores * weights.astype(mx.float32).swapaxes(-1, -2)[..., None]).sum(axis=1)
        visible = boolean_mask(mask, columns)
        scores = mx.where(visible[0, 0] if visible.ndim == 4 else visible, scores, -mx.inf)
        # A stable sort: equal scores (ReLU makes many zeros) go to the lowest column.
        order = mx.argsort(-scores, axis=-1)[..., :num_selected]
        missing = num_selected - order.shape[-1]
        if missing <= 0:
            return order
        return mx.concatenate([order, mx.repeat(order[..., :1], missing, axis=-1)], axis=-1)

    def attend(self, queries: mx.array, mask: Mask, num_real: NumReal, selected: mx.array | None = None) -> mx.array:
        columns = self._columns(queries.shape[2], num_real[0])
        latent = self._planes[LATENT_PLANE].view(columns.num_columns)
        rope = self._planes[ROPE_PLANE].view(columns.num_columns)
        width, scale = latent.shape[-1], self.layer.scale
        # The rotated part goes in as an additive mask, so that the fused kernel does the rest (mlx-lm's order).
        bias = (queries[..., width:] * scale) @ rope.swapaxes(-1, -2)
        allowed = self._allowed(mask, columns, selected)
        if allowed is not None:
            bias = mx.where(allowed, bias, mx.array(mx.finfo(bias.dtype).min, bias.dtype))
        return mx.fast.scaled_dot_product_attention(queries[..., :width], latent, latent, scale=scale, mask=bias)

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
            copy._planes = {name: slab.clone() for name, slab in self._planes.items()}
            copy._num_tokens = length
        return copy

    def can_rewind_to(self, num_tokens: int) -> bool:
        return 0 <= num_tokens <= self._num_tokens

    def arrays(self) -> StateArrays:
        length = self._num_tokens
        if length == 0:
            return StateArrays({}, {"num_tokens": 0})
        return StateArrays({name: slab.copied(length) for name, slab in self._planes.items()}, {"num_tokens": length})

    def adopt(self, arrays: StateArrays) -> None:
        assert self._num_tokens == 0, "only an empty state adopts"
        length = int(arrays.facts["num_tokens"])
        planes = checked_planes(self.layer, arrays, length)
        self._planes |= {name: Slab(one) for name, one in planes.items()}
        self._num_tokens = length

    def buffers(self) -> list[mx.array]:
        return [buffer for slab in self._planes.values() for buffer in slab.buffers()]

    @classmethod
    def loop(cls, states: Sequence[Self]) -> LatentLoop:
        return LatentLoop(states)

    def stacked(self, seating: Seating) -> StackedState | None:
        return None

    def _columns(self, width: int, num_real: int) -> StepColumns:
        num_columns = self._step_start + self._step_width
        return StepColumns(num_columns, self._step_start, width, num_real, end=self._step_start)

    def _allowed(self, mask: Mask, columns: StepColumns, selected: mx.array | None) -> mx.array | None:
        lowered = kernel_mask(mask, columns)
        allowed = boolean_mask(mask, columns) if isinstance(lowered, str) else lowered
        if selected is None:
            return allowed
        B, L, _ = selected.shape
        nothing = mx.zeros((B, L, columns.num_columns), dtype=mx.bool_)
        chosen = mx.put_along_axis(nothing, selected, mx.array(True), axis=-1)[:, None]
        return chosen if allowed is None else chosen & allowed

    def _kept_length(self, num_kept: int) -> int:
        assert self._window_start is not None, "no window is open"
        length = self._window_start + num_kept
        assert self._window_start <= length <= self._num_tokens, "more kept than appended"
        return length
