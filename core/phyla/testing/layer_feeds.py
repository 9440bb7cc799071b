"""Ways to give a layer's storage made-up tokens, one per kind protocol: a model's layer without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import mlx.core as mx

from phyla.kv.layer_spec import LATENT, RECURRENT, SLIDING, LayerSpec
from phyla.kv.mask import Causal, Mask, Windowed

if TYPE_CHECKING:
    from phyla.kv.kinds import KeyValueCache, KeyValueReader, LatentCache, NumReal, RecurrentCache, State

NUM_TOKEN_IDS = 64


class Feed(Protocol):
    """Drives one kind of storage. Everything is a function of token ids, so that equal ids mean equal arrays."""

    def step(self, storage: Any, token_ids: mx.array, num_real: NumReal) -> mx.array:
        """Give a step to `storage` and return what it computes.

        Args:
            storage: a state (B = 1) or a group, speaking its kind's protocol.
            token_ids: (B, L) int32 below `NUM_TOKEN_IDS`; arbitrary in padded places.
            num_real: real positions per row.

        Returns:
            (B, L, anything); arbitrary in padded places.
        """
        ...


def feed_for(layer: LayerSpec) -> Feed:
    """The feed of a kind that core knows."""
    if layer.kind == RECURRENT:
        return RecurrentFeed(layer)
    if layer.kind == LATENT:
        return LatentFeed(layer)
    return KeyValueFeed(layer)


@dataclass
class KeyValueFeed:
    """Appends keys and values, then attends."""

    layer: LayerSpec

    def step(self, storage: KeyValueCache, token_ids: mx.array, num_real: NumReal) -> mx.array:
        keys, values = self.layer.plane("keys"), self.layer.plane("values")
        storage.append(
            looked_up(token_ids, keys.num_heads, keys.width, seed=1),
            looked_up(token_ids, values.num_heads, values.width, seed=2),
            num_real,
        )
        return self.look(storage, token_ids, num_real)

    def look(self, storage: KeyValueCache | KeyValueReader, token_ids: mx.array, num_real: NumReal) -> mx.array:
        """What a step's queries get from what is stored; nothing is appended."""
        queries = looked_up(token_ids, self.layer.num_query_heads, self.layer.plane("keys").width, seed=3)
        return _positions_second(storage.attend(queries, self._mask(), num_real))

    def _mask(self) -> Mask:
        if self.layer.kind == SLIDING and self.layer.window is not None:
            return Windowed(self.layer.window)
        return Causal()


@dataclass
class RecurrentFeed:
    """Advances a decaying sum with a short memory of inputs.

    Planes: `sum` (rows, width) and `tail`, the last few inputs.
    """

    layer: LayerSpec

    def step(self, storage: RecurrentCache, token_ids: mx.array, num_real: NumReal) -> mx.array:
        total = self.layer.plane("sum")
        inputs = {
            "update": looked_up(token_ids, total.rows, total.width, seed=4).swapaxes(1, 2),
            "decay": mx.sigmoid(looked_up(token_ids, total.rows, 1, seed=5).swapaxes(1, 2)),
        }
        return storage.advance(inputs, self._recur, num_real)

    def _recur(self, inputs: Mapping[str, mx.array], state: State, num_real: NumReal) -> tuple[mx.array, State]:
        update, decay = inputs["update"], inputs["decay"]
        num_tail = self.layer.plane("tail").rows
        B, L, rows, width = update.shape
        total = state["sum"] if state else mx.zeros((B, rows, width))
        tail = state["tail"] if state else mx.zeros((B, num_tail, rows, width))
        joined = mx.concatenate([tail, update], axis=1)
        outputs, totals = [], [total]
        for position in range(L):
            total = decay[:, position] * total + update[:, position] + 0.5 * joined[:, position]
            totals.append(total)
            outputs.append(total)
        ends = [(totals[count][row], joined[row, count : count + num_tail]) for row, count in enumerate(num_real)]
        folded = {"sum": mx.stack([end[0] for end in ends]), "tail": mx.stack([end[1] for end in ends])}
        return mx.stack(outputs, axis=1), folded


@dataclass
class LatentFeed:
    """Appends latent planes, selects where the layer has an index, then attends."""

    layer: LayerSpec
    num_selected: int = 6

    def step(self, storage: LatentCache, token_ids: mx.array, num_real: NumReal) -> mx.array:
        planes = [plane for plane in self.layer.planes if plane.per_token]
        made = {plane.name: looked_up(token_ids, 1, plane.width, seed=10 + at) for at, plane in enumerate(planes)}
        storage.append(made, num_real)
        selected = None
        if "index" in made:
            queries = looked_up(token_ids, 2, self.layer.plane("index").width, seed=20)
            weights = looked_up(token_ids, 2, 1, seed=21)[..., 0].swapaxes(1, 2)
            selected = storage.select(queries, weights, self.num_selected, Causal(), num_real)
        width = self.layer.plane("latent").width + self.layer.plane("rope").width
        queries = looked_up(token_ids, self.layer.num_query_heads, width, seed=22)
        return _positions_second(storage.attend(queries, Causal(), num_real, selected))


def looked_up(token_ids: mx.array, num_heads: int, width: int, seed: int) -> mx.array:
    """(B, L) ids to (B, heads, L, width): equal ids give equal rows."""
    table = mx.random.normal((NUM_TOKEN_IDS, num_heads, width), key=mx.random.key(seed))
    return table[token_ids].swapaxes(1, 2)


def padded_ids(rows: Sequence[Sequence[int]], width: int, pad: int = 0) -> mx.array:
    """(B, L) ids, padded on the right."""
    return mx.array([[*row, *[pad] * (width - len(row))] for row in rows], dtype=mx.int32).reshape(len(rows), width)


def _positions_second(attended: mx.array) -> mx.array:
    B, H, L, D = attended.shape
    return attended.swapaxes(1, 2).reshape(B, L, H * D)
