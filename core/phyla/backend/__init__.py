"""The device under MLX: what it is, which BLAS it uses, which strategy is fast on it."""

from phyla.backend.blas import BlasReport, load_fast_blas
from phyla.backend.device import BackendFacts, Device
from phyla.backend.dtypes import resolve_dtype, resolve_weights
from phyla.backend.identity import NumericalIdentity
from phyla.backend.settings import BackendSettings

__all__ = [
    "BackendFacts",
    "BackendSettings",
    "BlasReport",
    "Device",
    "NumericalIdentity",
    "load_fast_blas",
    "resolve_dtype",
    "resolve_weights",
]
