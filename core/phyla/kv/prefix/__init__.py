"""Prefix reuse: computed tokens are kept and never read twice. Free of mlx until something is published.

`PrefixIndex` finds and keeps; `boundaries` decides where layers that forget are photographed; `publishing` makes what
is kept from a row; `TokenMemory` recognises generated text; `InFlightPrefills` lets rows wait for each other.
"""

from phyla.kv.prefix.boundaries import Boundary, BoundaryKind, plan_boundaries
from phyla.kv.prefix.in_flight import InFlightPrefills
from phyla.kv.prefix.index import Hit, Lookup, PrefixIndex, WantedDraft
from phyla.kv.prefix.namespace import PrefixNamespace
from phyla.kv.prefix.provenance import TokenMemory
from phyla.kv.prefix.publishing import DraftPart, Published
from phyla.kv.prefix.settings import PrefixSettings

__all__ = [
    "Boundary",
    "BoundaryKind",
    "DraftPart",
    "Hit",
    "InFlightPrefills",
    "Lookup",
    "PrefixIndex",
    "PrefixNamespace",
    "PrefixSettings",
    "Published",
    "TokenMemory",
    "WantedDraft",
    "plan_boundaries",
]
