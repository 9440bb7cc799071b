"""Which products can run for given sizes: asked by the plan before anything is loaded, and for each shape of a step."""

from __future__ import annotations

from phyla.backend.strategy import MatmulGeometry, QmmGeometry, Strategies

MOST_STREAMED_ROWS = 32
STREAMED_OUTPUTS, STREAMED_INPUTS = 16, 128
"""The kernel's tile: matrices are multiples of it."""


def usable_products(strategies: Strategies, geometry: MatmulGeometry | QmmGeometry) -> frozenset[str]:
    """Names of the products that can be chosen and can run, those of other weight forms included."""
    names = strategies.product_names(geometry.operation)
    return names - {"streamed"} if "streamed" in names and why_not_streamed(geometry) else names


def why_not_streamed(geometry: MatmulGeometry | QmmGeometry) -> str | None:
    """What stands in the way of the kernel of `phyla.nn.streamed`, as a clause; None if nothing does."""
    import mlx.core as mx

    if not mx.cuda.is_available():
        return "it is a CUDA kernel, and there is no such device here"
    if isinstance(geometry, QmmGeometry) and geometry.bits != 4:
        return f"it is written for 4 bits, and here are {geometry.bits}"
    if not 2 <= geometry.rows <= MOST_STREAMED_ROWS:
        return f"it is written for 2 to {MOST_STREAMED_ROWS} rows, and here are {geometry.rows}"
    if geometry.outputs % STREAMED_OUTPUTS or geometry.inputs % STREAMED_INPUTS:
        return (
            f"it is written for multiples of {STREAMED_OUTPUTS} outputs and {STREAMED_INPUTS} inputs, and here are "
            f"{geometry.outputs} and {geometry.inputs}"
        )
    return None
