"""Per-layer state: the contracts here, plain states and groups in the modules beside.

Everything exported here is free of mlx; the modules with arrays in them are imported where they are needed.
"""

from phyla.kv.codec import CacheCodec, EncodedEntry
from phyla.kv.kinds import KeyValueCache, KeyValueReader, LatentCache, Lender, Recurrence, RecurrentCache
from phyla.kv.layer_spec import FULL, LATENT, RECURRENT, SLIDING, LayerSpec, Layout, Plane
from phyla.kv.mask import Bidirectional, BidirectionalSpans, Causal, Explicit, Mask, RowLengths, Windowed
from phyla.kv.scheme import SUPPORTED, KVScheme, Support, Tier, refused
from phyla.kv.state import GroupState, LayerState, StackedState, StateArrays

__all__ = [
    "FULL",
    "LATENT",
    "RECURRENT",
    "SLIDING",
    "SUPPORTED",
    "Bidirectional",
    "BidirectionalSpans",
    "CacheCodec",
    "Causal",
    "EncodedEntry",
    "Explicit",
    "GroupState",
    "KVScheme",
    "KeyValueCache",
    "KeyValueReader",
    "LatentCache",
    "LayerSpec",
    "LayerState",
    "Layout",
    "Lender",
    "Mask",
    "Plane",
    "Recurrence",
    "RecurrentCache",
    "RowLengths",
    "StackedState",
    "StateArrays",
    "Support",
    "Tier",
    "Windowed",
    "refused",
]
