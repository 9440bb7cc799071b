"""What two requests must share before one may use the other's computed tokens."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class PrefixNamespace:
    """State from one namespace never seeds another. A draft set isn't part of it: it has its own identity."""

    model: str
    """Fingerprint of the checkpoint."""

    kv_scheme: str
    """Scheme identities of all layers, joined."""

    identity: str
    """Digest of the numerical identity."""

    owner: str = ""
    """The API key's namespace."""

    adapters: tuple[str, ...] = ()
    """Ordered adapter set, each with content hash and scale."""

    media: tuple[str, ...] = ()
    """Content hashes of pictures and sounds, in order: their placeholder ids are all alike."""

    def digest(self) -> str:
        """A short hex digest, stable across processes; names files."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]
