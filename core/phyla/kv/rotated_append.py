"""A kernel of our own for CUDA that norms, rotates and stores what a step projects, in one launch.

It takes the place of two rotations and two scatters, and of two norms where the model has them: a decode step is mostly
the number of its launches, for the host that prepares them and for a device that does little in each.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, TypeAlias, cast

import mlx.core as mx

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from phyla.kv.rotation import Rotation

Kernel: TypeAlias = "Callable[..., Sequence[mx.array]]"

WARPS = 4


def rotate_and_store(
    projected: mx.array,
    planes: Sequence[mx.array],
    rotation: Rotation,
    offsets: mx.array,
    starts: mx.array,
) -> tuple[mx.array, list[mx.array]]:
    """Queries, rotated; keys, rotated, and values go to their columns, in place whoever else holds the planes.

    Args:
        projected: (B*L, (H + 2K) * D): of each token its queries, keys and values.
        planes: keys and values, (B, K, S, D) each. Columns behind a row's end are nobody's: whoever holds these planes
            as they were sees no difference.
        rotation: of queries and keys.
        offsets: (B,) int32, the position of each row's first token.
        starts: (B,) int32, the column that it goes to, modulo S.

    Returns:
        (B, H, L, D) queries, and the planes, which whoever reads them is to take from here: only then they wait.
    """
    keys, values = planes
    B, K, _, D = keys.shape
    num_slices = projected.shape[1] // D
    num_warps = projected.shape[0] * num_slices
    norms = rotation.norms
    queries = _kernel()(
        inputs=[
            projected,
            keys,
            values,
            offsets.reshape(-1),
            starts,
            rotation.periods,
            # Without norms nobody looks there.
            projected if norms is None else norms.queries,
            projected if norms is None else norms.keys,
            mx.array([0.0 if norms is None else norms.eps], dtype=mx.float32),
        ],
        template=[("T", projected.dtype), ("D", D), ("ROTATED", rotation.num_dims), ("NORMED", norms is not None)],
        grid=(-(-num_warps // WARPS) * WARPS * 32, 1, 1),
        threadgroup=(WARPS * 32, 1, 1),
        output_shapes=[(B, num_slices - 2 * K, projected.shape[0] // B, D)],
        output_dtypes=[projected.dtype],
    )[0]
    # MLX knows of no kernel that writes into its inputs.
    return queries, list(mx.depends([keys, values], [queries]))


@cache
def _kernel() -> Kernel:
    kernel: object = mx.fast.cuda_kernel(
        name="phyla_rotated_append",
        input_names=[
            "projected",
            "keys",
            "values",
            "offsets",
            "starts",
            "periods",
            "query_norm",
            "key_norm",
            "small",
        ],
        output_names=["queries"],
        source=files("phyla.kv").joinpath("rotated_append.cu").read_text(),
        # A copy of a plane would be written in its place.
        ensure_row_contiguous=False,
    )
    return cast("Kernel", kernel)
