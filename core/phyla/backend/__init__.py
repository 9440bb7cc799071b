"""The device under MLX: what it is, which BLAS it uses, which strategy is fast on it."""

from phyla.backend.device import BackendFacts, Device

__all__ = ["BackendFacts", "Device"]
