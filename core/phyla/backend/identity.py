"""What decides the low bits of a result: the key of everything that stores computed state."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class NumericalIdentity:
    """Two processes with equal identity compute equal bits for equal steps."""

    mlx_version: str
    device: str
    device_name: str
    dtype: str
    blas: str
    """Library, version, thread count and shim on the CPU; empty elsewhere."""

    route: str
    """The configured `--route`, not the one a step happened to take."""

    weights: str
    strategy_digest: str
    """Digest of the strategy tables."""

    prefill_chunk: int
    """Tokens of the chunk rule's result for this model."""

    def digest(self) -> str:
        """A short hex digest, stable across processes."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]
