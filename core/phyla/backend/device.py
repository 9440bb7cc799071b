"""What device MLX computes on, as facts that selection and schemes decide by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Device = Literal["metal", "cuda", "cpu"]


@dataclass(frozen=True)
class BackendFacts:
    """Facts of this process; gathered once by `detect` and passed in."""

    device: Device
    device_name: str
    mlx_version: str
    memory_bytes: int
    """What the device can address: unified, GPU or main memory."""

    working_set_bytes: int
    """The recommended ceiling for weights and caches."""

    blas: str = ""
    """Library, version, thread count and shim on the CPU; empty elsewhere."""

    bandwidth_bytes_per_second: float | None = None
    """Measured or listed memory bandwidth, or None if unknown."""

    notices: tuple[str, ...] = ()
    """Lines for the user: what makes this device slower than it could be, and the remedy."""
