"""The shape that tells MiniCPM5 from other llamas, and a config read as one. No mlx."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phyla.errors import DamagedCheckpoint, UnsupportedModel

RELEASED: Mapping[str, int] = {
    "hidden_size": 1536,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "vocab_size": 130560,
}
"""Sizes of MiniCPM5-1B; no other llama has them together."""

ROPE_BASE = 5_000_000.0
MOST_LAYERS = 4096

FIXED: Mapping[str, tuple[Any, ...]] = {
    "model_type": ("llama",),
    "hidden_act": (None, "silu"),
    "attention_bias": (None, False),
    "mlp_bias": (None, False),
    "tie_word_embeddings": (None, False),
    "rope_traditional": (None, False),
    "layer_types": (None,),
    "sliding_window": (None,),
}
"""What a config of this kind says of these keys; leaving one out says the first."""


@dataclass(frozen=True)
class Shape:
    """What the decoder is built from."""

    hidden_size: int
    intermediate_size: int
    vocab_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    context_limit: int


def is_released(config: Mapping[str, Any]) -> bool:
    """Whether this is MiniCPM5-1B."""
    return is_alike(config) and all(config.get(key) == size for key, size in RELEASED.items())


def is_alike(config: Mapping[str, Any]) -> bool:
    """Whether this is a llama of the same kind in another size.

    Untied, without biases, on a plain base of 5 million, and with heads that aren't the quotient of hidden size and
    their number.
    """
    return _odd_key(config) is None


def shape_of(config: Mapping[str, Any]) -> Shape:
    """Read and check a config.

    Raises:
        UnsupportedModel: it is another kind of llama; names the key.
        DamagedCheckpoint: a size is missing, or sizes contradict each other; names the key.
    """
    odd = _odd_key(config)
    if odd is not None:
        raise UnsupportedModel(
            f"'{odd}': {config.get(odd)!r} isn't what a MiniCPM5 says there (see docs/families/minicpm5.md). "
            "Leave --family out, and the family that knows this llama runs it."
        )
    shape = Shape(
        hidden_size=_count(config, "hidden_size"),
        intermediate_size=_count(config, "intermediate_size"),
        vocab_size=_count(config, "vocab_size"),
        num_layers=_count(config, "num_hidden_layers"),
        num_heads=_count(config, "num_attention_heads"),
        num_kv_heads=_count(config, "num_key_value_heads"),
        head_dim=_count(config, "head_dim"),
        norm_eps=_positive(config, "rms_norm_eps"),
        context_limit=_count(config, "max_position_embeddings"),
    )
    if shape.num_layers > MOST_LAYERS:
        raise DamagedCheckpoint(f"'num_hidden_layers' is {shape.num_layers}; no model has more than {MOST_LAYERS}.")
    if shape.num_heads % shape.num_kv_heads:
        raise DamagedCheckpoint(
            f"'num_attention_heads' ({shape.num_heads}) isn't a multiple of "
            f"'num_key_value_heads' ({shape.num_kv_heads})."
        )
    return shape


def _odd_key(config: Mapping[str, Any]) -> str | None:
    """The first key that another kind of llama would have this way."""
    for key, allowed in FIXED.items():
        if config.get(key) not in allowed:
            return key
    if not _is_plain_rope(config):
        return "rope_parameters" if "rope_parameters" in config else "rope_theta"
    if config.get("rope_scaling") is not None:
        return "rope_scaling"
    return None if _has_heads_of_their_own_size(config) else "head_dim"


def _has_heads_of_their_own_size(config: Mapping[str, Any]) -> bool:
    head_dim, num_heads = config.get("head_dim"), config.get("num_attention_heads")
    if not isinstance(head_dim, int) or not isinstance(num_heads, int):
        return False
    return num_heads * head_dim != config.get("hidden_size")


def _is_plain_rope(config: Mapping[str, Any]) -> bool:
    nested = config.get("rope_parameters")
    if nested is None:
        return bool(config.get("rope_theta") == ROPE_BASE)
    return (
        isinstance(nested, Mapping)
        and nested.get("rope_type", "default") == "default"
        and nested.get("rope_theta", config.get("rope_theta")) == ROPE_BASE
    )


def _count(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise DamagedCheckpoint(f"'{key}' is {value!r}; it has to be a positive whole number.")
    return value


def _positive(config: Mapping[str, Any], key: str) -> float:
    value = config.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise DamagedCheckpoint(f"'{key}' is {value!r}; it has to be a positive number.")
    return float(value)
