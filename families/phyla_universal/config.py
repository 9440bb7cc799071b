"""A checkpoint's config read through its architecture's row: checked, with every default resolved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phyla.errors import DamagedCheckpoint, UnsupportedModel
from phyla.nn.rope_form import RopeForm, rope_form

from phyla_universal.descriptor import DESCRIPTORS, Bias, Descriptor, architecture_of

MOST_LAYERS = 4096

INEXPRESSIBLE: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": (None, "silu", "swish"),
    "partial_rotary_factor": (None, 1),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "query_pre_attn_scalar": (None,),
    "num_experts": (None, 0),
    "num_local_experts": (None, 0),
    "n_routed_experts": (None, 0),
    "kv_lora_rank": (None, 0),
    "no_rope_layers": (None,),
    "no_rope_layer_interval": (None, 0),
    "use_parallel_residual": (None, False),
    "parallel_attn": (None, False),
    "alibi": (None, False),
    "clip_qkv": (None,),
    "embedding_multiplier": (None, 1),
    "residual_multiplier": (None, 1),
    "attention_multiplier": (None,),
    "logits_scaling": (None, 1),
}
"""Keys that ask for something no row of the table can say, with the values that ask for nothing."""


@dataclass(frozen=True)
class DecoderConfig:
    """What the decoder is built from."""

    architecture: str
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    context_limit: int
    rope: RopeForm
    windows: tuple[int | None, ...]
    """Per layer: tokens it sees, or None for all."""

    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    has_qk_norm: bool

    @property
    def num_layers(self) -> int:
        return len(self.windows)


def decoder_config(config: Mapping[str, Any]) -> DecoderConfig:
    """Read and check a config.

    Raises:
        UnsupportedModel: it asks for something the table can't say; names the key.
        DamagedCheckpoint: a size is missing, or sizes contradict each other; names the key.
    """
    architecture = architecture_of(config)
    row = DESCRIPTORS[architecture]
    _refuse_inexpressible(config, architecture, row)
    num_heads = _count(config, "num_attention_heads")
    num_kv_heads = num_heads if _may_omit_kv_heads(config, row) else _count(config, "num_key_value_heads")
    if num_heads % num_kv_heads:
        raise DamagedCheckpoint(
            f"'num_attention_heads' ({num_heads}) isn't a multiple of 'num_key_value_heads' ({num_kv_heads})."
        )
    return DecoderConfig(
        architecture=architecture,
        hidden_size=_count(config, "hidden_size"),
        intermediate_size=_count(config, "intermediate_size"),
        vocab_size=_count(config, "vocab_size"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=_head_dim(config, row, num_heads),
        norm_eps=_positive(config, "rms_norm_eps"),
        context_limit=_count(config, "max_position_embeddings"),
        rope=rope_form(config, row.rope_base),
        windows=_windows(config, row),
        qkv_bias=_has_bias(config, row.qkv_bias),
        out_bias=_has_bias(config, row.out_bias),
        mlp_bias=_has_bias(config, row.mlp_bias),
        has_qk_norm=row.has_qk_norm,
    )


def _refuse_inexpressible(config: Mapping[str, Any], architecture: str, row: Descriptor) -> None:
    for key, harmless in INEXPRESSIBLE.items():
        if config.get(key) not in harmless:
            raise _inexpressible(architecture, key, config[key])
    biases = {row.qkv_bias, row.out_bias, row.mlp_bias}
    for key in ("attention_bias", "mlp_bias"):
        if config.get(key) and key not in biases:
            raise _inexpressible(architecture, key, config[key])


def _inexpressible(architecture: str, key: str, value: Any) -> UnsupportedModel:
    return UnsupportedModel(
        f"A {architecture} model with '{key}': {value!r} is more than the universal decoder can express. "
        "It needs a family of its own (see docs/writing-plugins.md)."
    )


def _may_omit_kv_heads(config: Mapping[str, Any], row: Descriptor) -> bool:
    return row.num_kv_heads_is_optional and config.get("num_key_value_heads") is None


def _head_dim(config: Mapping[str, Any], row: Descriptor, num_heads: int) -> int:
    stated = config.get("head_dim")
    if row.head_dim == "stated" or (row.head_dim == "stated or quotient" and stated):
        return _count(config, "head_dim")
    hidden_size = _count(config, "hidden_size")
    if hidden_size % num_heads:
        raise DamagedCheckpoint(
            f"'hidden_size' ({hidden_size}) isn't a multiple of 'num_attention_heads' ({num_heads})."
        )
    if stated not in (None, hidden_size // num_heads):
        raise _inexpressible(architecture_of(config), "head_dim", stated)
    return hidden_size // num_heads


def _windows(config: Mapping[str, Any], row: Descriptor) -> tuple[int | None, ...]:
    num_layers = _count(config, "num_hidden_layers")
    if num_layers > MOST_LAYERS:
        raise DamagedCheckpoint(f"'num_hidden_layers' is {num_layers}; no model has more than {MOST_LAYERS}.")
    kinds = config.get("layer_types")
    if kinds is None or not row.honours_layer_types:
        return (None,) * num_layers
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise DamagedCheckpoint(f"'layer_types' is {kinds!r}; it has to name {num_layers} layers.")
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise _inexpressible(architecture_of(config), "layer_types", kind)
    return tuple(_count(config, "sliding_window") if kind == "sliding_attention" else None for kind in kinds)


def _has_bias(config: Mapping[str, Any], bias: Bias) -> bool:
    return bias == "always" or (bias != "never" and bool(config.get(bias, False)))


def _count(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise DamagedCheckpoint(f"'{key}' is {value!r}; it has to be a positive whole number.")
    return value


def _positive(config: Mapping[str, Any], key: str) -> float:
    value = config.get(key)
    if not isinstance(value, int | float) or value <= 0:
        raise DamagedCheckpoint(f"'{key}' is {value!r}; it has to be a positive number.")
    return float(value)
