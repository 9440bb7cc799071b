"""How a prefix entry becomes bytes and comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phyla.kv.state import StateArrays


@dataclass(frozen=True)
class EncodedEntry:
    """One prefix entry as host data: what a codec writes and reads."""

    namespace: str
    identity: str
    """Digest of the numerical identity it was computed under; another one is refused."""

    tokens: tuple[int, ...]
    layers: Mapping[str, StateArrays]
    """Set and layer (`target/3`) to its arrays."""

    facts: Mapping[str, Any]


@dataclass(frozen=True)
class CacheCodec:
    """Encodes entries to bytes and back: `decode(encode(entry)) == entry`, bit for bit."""

    name: str
    version: int
    encode: Callable[[EncodedEntry], bytes]
    decode: Callable[[bytes, str], EncodedEntry]
    """`(data, expected identity)`; raises CodecError on anything damaged, foreign or older. Never half reads."""
