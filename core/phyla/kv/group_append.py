"""Ways of storing a step's tokens for many rows at once, each row at its own column."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import mlx.core as mx

GroupAppend = Callable[[mx.array, mx.array, mx.array], mx.array]
"""`(plane, columns, rows)`: the plane (B, heads, S, width) with each row's tokens (B, heads, L, width) at its columns
(B, 1, L, 1) int32. The plane is written in place where nobody else holds it."""


def scatter(plane: mx.array, columns: mx.array, rows: mx.array) -> mx.array:
    """One write for all rows."""
    return mx.put_along_axis(plane, mx.broadcast_to(columns, rows.shape), rows, axis=2)


def slices(plane: mx.array, columns: mx.array, rows: mx.array) -> mx.array:
    """One write per row and position: columns of one row need not follow each other, a ring may wrap."""
    for row in range(rows.shape[0]):
        for position in range(rows.shape[2]):
            start = mx.stack([mx.array(row, dtype=mx.int32), columns[row, 0, position, 0]])
            plane = mx.slice_update(plane, rows[row : row + 1, :, position : position + 1], start, axes=(0, 2))
    return plane


APPENDS: Mapping[str, GroupAppend] = MappingProxyType({"scatter": scatter, "slices": slices})
"""By the names of the strategies. `rotated` isn't one of them (`phyla.kv.rotated_append`): it takes what comes before
rotation, and scatters what comes rotated."""
