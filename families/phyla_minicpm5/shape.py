"""The shape that tells MiniCPM5 from other llamas, and a config read as one. No mlx."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phyla.model.config_reader import MOST_LAYERS, ConfigReader
from phyla.model.quantization import QuantSection, parse_quant_section

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
    return not odd_keys(config)


def odd_keys(config: Mapping[str, Any]) -> list[str]:
    """Keys that another kind of llama would have this way."""
    odd = [key for key, allowed in FIXED.items() if config.get(key) not in allowed]
    if not _is_plain_rope(config):
        odd.append("rope_parameters" if "rope_parameters" in config else "rope_theta")
    if config.get("rope_scaling") is not None:
        odd.append("rope_scaling")
    return odd if _has_heads_of_their_own_size(config) else [*odd, "head_dim"]


def shape_of(config: Mapping[str, Any]) -> Shape:
    """Read and check a config.

    Raises:
        UnsupportedModel: it is another kind of llama; names the keys.
        DamagedCheckpoint: a size is missing, or sizes contradict each other; names the keys.
    """
    reader = ConfigReader(config, "MiniCPM5")
    reader.knows(*FIXED, "rope_theta", "rope_parameters", "rope_scaling")
    for key in odd_keys(config):
        reader.unsupported(
            f"'{key}': {config.get(key)!r} isn't what a MiniCPM5 says there (see docs/families/minicpm5.md). "
            "Leave --family out, and the family that knows this llama runs it."
        )
    reader.attempt(lambda: parse_quant_section(config), QuantSection(None, {}))
    reader.multiple("num_attention_heads", "num_key_value_heads")
    shape = Shape(
        hidden_size=reader.count("hidden_size"),
        intermediate_size=reader.count("intermediate_size"),
        vocab_size=reader.count("vocab_size"),
        num_layers=reader.count("num_hidden_layers", at_most=MOST_LAYERS),
        num_heads=reader.count("num_attention_heads"),
        num_kv_heads=reader.count("num_key_value_heads"),
        head_dim=reader.get("head_dim", 1),
        norm_eps=reader.positive("rms_norm_eps"),
        context_limit=reader.count("max_position_embeddings"),
    )
    reader.finish()
    return shape


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
