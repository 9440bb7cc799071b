"""Rows for the index's tests: real states, fed with what their tokens mean."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
from phyla.backend.device import BackendFacts
from phyla.kv import LayerSpec, LayerState, Layout, Plane
from phyla.kv.plain import create_plain
from phyla.kv.prefix import PrefixNamespace
from phyla.kv.row_state import RowState
from phyla.testing.layer_feeds import NUM_TOKEN_IDS, feed_for, padded_ids

CPU = BackendFacts("cpu", "test", "test", memory_bytes=1 << 30, working_set_bytes=1 << 30)
KEY_VALUE = (Plane("keys", 1, 4), Plane("values", 1, 4))
FULL = LayerSpec(0, "full", KEY_VALUE, num_query_heads=1)
SLIDING = LayerSpec(1, "sliding", KEY_VALUE, window=6, num_query_heads=1)
RECURRENT = LayerSpec(
    2, "recurrent", (Plane("sum", 1, 4, per_token=False, rows=2), Plane("tail", 1, 4, per_token=False, rows=2))
)
LATENT = LayerSpec(3, "latent", (Plane("latent", 1, 4), Plane("rope", 1, 2)), num_query_heads=1)
LAYOUTS: dict[str, Layout] = {
    "full": (FULL,),
    "latent": (LATENT,),
    "sliding": (FULL, SLIDING),
    "recurrent": (FULL, RECURRENT),
    "all": (FULL, SLIDING, RECURRENT, LATENT),
}
HERE = PrefixNamespace(model="m", kv_scheme="plain", identity="i")


def empty_row(layout: Layout) -> RowState:
    return RowState.fresh(layout, new_state)


def new_state(layer: LayerSpec) -> LayerState:
    return create_plain(layer, CPU, "float32")


def extend(row: RowState, layout: Layout, token_ids: Sequence[int], chunk: int = 8) -> RowState:
    """Compute tokens in chunks; the row."""
    for start in range(0, len(token_ids), chunk):
        ids = list(token_ids[start : start + chunk])
        for layer, state in zip(layout, row.sets["target"], strict=True):
            mx.eval(feed(layer, state, ids))
        row.record(ids)
    return row


def computed(layout: Layout, token_ids: Sequence[int]) -> RowState:
    return extend(empty_row(layout), layout, token_ids)


def feed(layer: LayerSpec, state: LayerState, ids: Sequence[int]) -> mx.array:
    folded = [token_id % NUM_TOKEN_IDS for token_id in ids]
    return feed_for(layer).step(state, padded_ids([folded], len(folded)), (len(folded),))


def next_outputs(row: RowState, layout: Layout, token_id: int = 5) -> list[mx.array]:
    """What one more token computes in each layer; the row moves on."""
    outputs = [feed(layer, state, [token_id]) for layer, state in zip(layout, row.sets["target"], strict=True)]
    mx.eval(outputs)
    row.record([token_id])
    return outputs
