"""Plain storage: keys, values and states as the model made them. Free of mlx until a state is created."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phyla.errors import UnsupportedScheme
from phyla.kv.layer_spec import FULL, LATENT, RECURRENT, SLIDING
from phyla.kv.scheme import SUPPORTED, KVScheme, Support

if TYPE_CHECKING:
    from phyla.backend.device import BackendFacts
    from phyla.kv.layer_spec import LayerSpec
    from phyla.kv.state import LayerState

PLAIN_KINDS = frozenset({FULL, SLIDING, RECURRENT, LATENT})


def create_plain(layer: LayerSpec, backend: BackendFacts, dtype: str) -> LayerState:
    """An empty plain state for one layer.

    The layer's own `plain` factory comes first, so that a kind core has never heard of works like the built-in ones.
    Arrays are stored in the dtype they arrive in; `dtype` only matters to schemes that convert.

    Raises:
        UnsupportedScheme: core has no state for this kind and the layer brings none.
    """
    if layer.plain is not None:
        return layer.plain(layer)
    if layer.kind == FULL:
        from phyla.kv.plain.full import FullState

        return FullState(layer)
    if layer.kind == SLIDING:
        from phyla.kv.plain.ring import RingState

        return RingState(layer)
    if layer.kind == RECURRENT:
        from phyla.kv.plain.recurrent import RecurrentState

        return RecurrentState(layer)
    if layer.kind == LATENT:
        from phyla.kv.plain.latent import LatentState

        return LatentState(layer)
    raise UnsupportedScheme(
        f"Layer {layer.index} is of kind '{layer.kind}', which core has no state for "
        f"(it knows {', '.join(sorted(PLAIN_KINDS))}). A family that invents a kind gives `LayerSpec.plain`."
    )


def plain_bytes_per_token(layer: LayerSpec, dtype: str) -> float:
    """Bytes that one more token adds to a layer's storage; 0 for a recurrence and for a borrowing layer."""
    if not layer.owns_state:
        return 0.0
    growing = [plane for plane in layer.planes if plane.per_token]
    return float(sum(plane.num_heads * plane.width * dtype_bytes(plane.dtype or dtype) for plane in growing))


def plain_fixed_bytes(layer: LayerSpec, dtype: str) -> int:
    """Bytes of what a layer keeps per row whatever its length; 0 for a layer that only grows."""
    if not layer.owns_state:
        return 0
    fixed = [plane for plane in layer.planes if not plane.per_token]
    return sum(plane.num_heads * plane.rows * plane.width * dtype_bytes(plane.dtype or dtype) for plane in fixed)


def dtype_bytes(dtype: str) -> int:
    """Bytes of one number of an mlx dtype by name."""
    return 4 if dtype.endswith("32") else 2 if dtype.endswith("16") else 8 if dtype.endswith("64") else 1


def _supports(layer: LayerSpec, backend: BackendFacts) -> Support:
    return SUPPORTED


PLAIN = KVScheme(
    name="plain",
    kinds=PLAIN_KINDS,
    supports=_supports,
    create=create_plain,
    bytes_per_token=plain_bytes_per_token,
    aliases={"off": "", "bf16": ""},
    description="Stores what the model made, unchanged.",
)
