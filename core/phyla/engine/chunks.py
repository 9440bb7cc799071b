"""How a prompt is cut for prefill."""

from __future__ import annotations

from collections.abc import Sequence

from phyla.kv.layer_spec import LayerSpec

AUTOMATIC_CHUNK = 2048
"""Tokens per chunk where nothing forces less; the reference loop's own."""

SCORE_WORKSPACE_BYTES = 2**30
SMALLEST_AUTOMATIC_CHUNK = 8
COMPANY_CHUNK = 32
"""Fewest tokens that a chunk is cut to for the sake of running rows: below it matrices degrade to vectors, and the
layers of the chunk are spread over several pieces instead."""


def chunk_rule(
    layout: Sequence[LayerSpec], context_limit: int, scores_are_materialised: bool, explicit: int | None
) -> int:
    """Tokens per prefill chunk of a model; one number for all its prompts, so that chunk edges meet.

    An explicit value wins. Otherwise 2048, halved while a layer that materialises its scores would need more than
    1 GiB for them at the longest prompt, down to 8.
    """
    if explicit is not None:
        return explicit
    chunk = AUTOMATIC_CHUNK
    if not scores_are_materialised:
        return chunk
    while chunk > SMALLEST_AUTOMATIC_CHUNK and score_bytes(layout, context_limit, chunk) > SCORE_WORKSPACE_BYTES:
        chunk //= 2
    return chunk


def score_bytes(layout: Sequence[LayerSpec], num_prompt: int, chunk: int) -> int:
    """Bytes of the largest layer's scores, two per number: one layer is live at a time."""
    length = min(chunk, num_prompt)
    return max(
        (2 * layer.num_query_heads * length * _keys_seen(layer, num_prompt, length) for layer in layout), default=0
    )


def _keys_seen(layer: LayerSpec, num_prompt: int, length: int) -> int:
    return num_prompt if layer.window is None else min(num_prompt, layer.window + length)


def chunk_end(start: int, wanted: int, limit: int, atomic: Sequence[tuple[int, int]]) -> int:
    """Where a chunk ends that begins at `start` and would like `wanted` tokens, without cutting an atomic span.

    A span that begins after `start` is left for the next chunk; one that begins the chunk is taken whole.
    """
    end = min(start + wanted, limit)
    for first, stop in atomic:
        if first < end < stop:
            end = first if first > start else min(stop, limit)
    return end
