"""Checking flat arrays before a state adopts them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phyla.errors import LayoutError

if TYPE_CHECKING:
    import mlx.core as mx

    from phyla.kv.layer_spec import LayerSpec
    from phyla.kv.state import StateArrays


def checked_planes(layer: LayerSpec, arrays: StateArrays, num_columns: int) -> dict[str, mx.array]:
    """Fresh handles of the arrays, one per growing plane of the layer, (1, heads, num_columns, width) each.

    Raises:
        LayoutError: a plane is missing, unknown or of another shape.
    """
    expected = {plane.name: plane for plane in layer.planes if plane.per_token} if num_columns > 0 else {}
    if set(arrays.arrays) != set(expected):
        raise LayoutError(
            f"Layer {layer.index} ({layer.kind}) stores planes {sorted(expected)}; the arrays hold "
            f"{sorted(arrays.arrays)}. They were made for another layout."
        )
    for name, plane in expected.items():
        shape = (1, plane.num_heads, num_columns, plane.width)
        if tuple(arrays.arrays[name].shape) != shape:
            raise LayoutError(
                f"Layer {layer.index} ({layer.kind}) needs '{name}' as {shape}; "
                f"the arrays hold {tuple(arrays.arrays[name].shape)}."
            )
    return {name: arrays.arrays[name][:] for name in expected}
