"""A kernel of our own for rows of different lengths on CUDA: columns that nobody may see aren't read.

One launch (two where a few rows are long) takes the place of the five of `grouped`, two of which are cuBLAS products
that cost the host more to prepare than the device to compute.

Source:
    The running maximum and the shares of columns that are put together at the end are those of FlashAttention
    (arXiv:2205.14135) and of its form for decoding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, TypeAlias, cast

import mlx.core as mx

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Kernel: TypeAlias = "Callable[..., Sequence[mx.array]]"

WARPS = 8
MOST_QUERIES = 4
"""Of a block: more share what is read, but need registers that other blocks then don't have."""

WANTED_BLOCKS = 256
"""Enough for a large device: with fewer, blocks take shares of the columns."""

LEAST_COLUMNS = 64
"""Of a share: below it, putting shares together costs more than they save."""


@dataclass(frozen=True)
class Launch:
    """How the work is cut."""

    together: int
    """Queries of a block."""

    blocks: int
    """Without their shares."""

    shares: int
    """Of the columns; each has blocks of its own."""

    @classmethod
    def of(cls, rows: int, key_heads: int, queries_per_key_head: int, columns: int) -> Launch:
        """As few shares as keep the device busy."""
        together = min(MOST_QUERIES, 1 << (queries_per_key_head - 1).bit_length())
        blocks = rows * key_heads * -(-queries_per_key_head // together)
        return cls(together, blocks, max(1, min(-(-WANTED_BLOCKS // blocks), columns // LEAST_COLUMNS)))


def attend_ragged(queries: mx.array, keys: mx.array, values: mx.array, visible: mx.array, scale: float) -> mx.array:
    """Attend with L queries per row.

    Args:
        queries: (B, H, L, D), D as `why_not_ragged` allows.
        keys: (B, K, S, D); columns that nobody may see hold anything finite.
        values: (B, K, S, D).
        visible: (B, 1, L, S) booleans; at least one column per query.
        scale: factor on the scores.

    Returns:
        (B, H, L, D) in the dtype of `queries`, each position's heads side by side in memory; sums are float32.
    """
    B, H, L, D = queries.shape
    K, S = keys.shape[1], keys.shape[2]
    launch = Launch.of(B, K, H // K * L, S)
    is_whole = launch.shares == 1
    shape = (B, H, 1, D) if L == 1 else (B, L, H, D)
    dtype = queries.dtype if is_whole else mx.float32
    sizes = {"D": D, "QUERIES": launch.together, "WARPS": WARPS, "WHOLE": is_whole}
    attended = _kernel()(
        inputs=[queries, keys, values, visible, mx.array([scale], dtype=mx.float32)],
        template=[("T", queries.dtype), ("O", dtype), *sizes.items()],
        grid=(launch.blocks * WARPS * 32, launch.shares, 1),
        threadgroup=(WARPS * 32, 1, 1),
        output_shapes=[shape if is_whole else (B * L * H, launch.shares, D + 2)],
        output_dtypes=[dtype],
    )[0]
    if not is_whole:
        attended = _shares_kernel()(
            inputs=[attended],
            template=[("T", queries.dtype), ("D", D), ("SHARES", launch.shares)],
            grid=(queries.size, 1, 1),
            threadgroup=(D, 1, 1),
            output_shapes=[shape],
            output_dtypes=[queries.dtype],
        )[0]
    return attended if L == 1 else attended.swapaxes(1, 2)


@cache
def _kernel() -> Kernel:
    # Buffers are read where they lie: a step's queries, and columns of a longer buffer, are views.
    kernel: object = mx.fast.cuda_kernel(
        name="phyla_ragged_attention",
        input_names=["queries", "keys", "values", "visible", "scaling"],
        output_names=["attended"],
        source=_source("ragged_attention.cu"),
        ensure_row_contiguous=False,
    )
    return cast("Kernel", kernel)


@cache
def _shares_kernel() -> Kernel:
    kernel: object = mx.fast.cuda_kernel(
        name="phyla_ragged_shares",
        input_names=["parts"],
        output_names=["attended"],
        source=_source("ragged_shares.cu"),
    )
    return cast("Kernel", kernel)


def _source(name: str) -> str:
    return files("phyla.kv").joinpath(name).read_text()
