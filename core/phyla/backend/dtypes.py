"""Which dtype a model computes in, and whether its quantised weights stay quantised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from phyla.backend.device import BackendFacts
from phyla.backend.strategy import Chosen
from phyla.errors import UnknownName, UsageError

DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Resolved:
    """A decision and its reason, for the plan."""

    value: str
    reason: str


def resolve_dtype(requested: str, stored: str, backend: BackendFacts) -> Resolved:
    """The dtype that activations, caches and unquantised weights get.

    Args:
        requested: `auto`, or a name from `DTYPES`.
        stored: dtype of the checkpoint's unquantised weights.
        backend: where it will run.

    Raises:
        UnknownName: no such dtype.
    """
    if requested != "auto":
        if requested not in DTYPES:
            raise UnknownName("dtype", requested, ("auto", *DTYPES))
        return Resolved(requested, "asked for")
    if backend.device == "cpu":
        return Resolved("float32", "MLX's CPU kernels for half precision are scalar")
    if stored not in DTYPES:
        return Resolved("bfloat16", f"the checkpoint's {stored} isn't a dtype to compute in")
    return Resolved(stored, "the checkpoint's own")


def resolve_weights(
    requested: Literal["auto", "stored", "dense"],
    stored_bytes: int,
    dense_bytes: int,
    backend: BackendFacts,
    product: Chosen,
) -> Resolved:
    """Whether quantised weights are kept as stored or dequantised once at load.

    Args:
        requested: `auto` decides by what is fast, and by memory.
        stored_bytes: of all weights as they are in the checkpoint.
        dense_bytes: of all weights in the dtype to compute in.
        backend: where it will run.
        product: the fastest way to multiply these weights, `dense` or another.

    Raises:
        UsageError: dense weights were asked for and don't fit.
    """
    if requested == "dense" and dense_bytes > backend.working_set_bytes:
        raise UsageError(
            f"Dequantised, the weights take {_gb(dense_bytes)}, and {_gb(backend.working_set_bytes)} of this device "
            f"can be used. Keep them as stored ({_gb(stored_bytes)}) with --weights stored."
        )
    if requested != "auto":
        return Resolved(requested, "asked for")
    if stored_bytes >= dense_bytes:
        return Resolved("stored", "the checkpoint isn't quantised")
    if product.name != "dense":
        return Resolved("stored", f"product '{product.name}': {product.reason}")
    # Half of it: caches and a step's workspace need the rest.
    if dense_bytes > backend.working_set_bytes // 2:
        return Resolved("stored", f"dequantised they would take {_gb(dense_bytes)} of {_gb(backend.working_set_bytes)}")
    return Resolved("dense", f"dense products: {product.reason}; {_gb(dense_bytes)} fit")


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
