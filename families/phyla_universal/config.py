"""A checkpoint's config read through its architecture's row: checked, with every default resolved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phyla.model.config_reader import MOST_LAYERS, ConfigReader
from phyla.model.quantization import QuantSection, parse_quant_section
from phyla.model.rope_config import read_rope
from phyla.nn.rope_form import RopeForm

from phyla_universal.descriptor import DESCRIPTORS, Bias, Descriptor, architecture_of

ADVICE = "What the universal decoder can't express needs a family of its own (see docs/writing-plugins.md)."

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
        UnsupportedModel: it asks for something the table can't say; names the keys.
        DamagedCheckpoint: a size is missing, or sizes contradict each other; names the keys.
    """
    architecture = architecture_of(config)
    row = DESCRIPTORS[architecture]
    reader = ConfigReader(config, architecture, ADVICE)
    reader.only(INEXPRESSIBLE)
    # Said by some checkpoints and not applied, as in mlx-lm; `describe` has a note on it.
    reader.knows("use_sliding_window", "sliding_window", "max_window_layers", "layer_types")
    reader.attempt(lambda: parse_quant_section(config), QuantSection(None, {}))
    num_heads = reader.count("num_attention_heads")
    num_kv_heads = num_heads if _may_omit_kv_heads(reader, row) else reader.count("num_key_value_heads")
    reader.multiple("num_attention_heads", "num_key_value_heads")
    read = DecoderConfig(
        architecture=architecture,
        hidden_size=reader.count("hidden_size"),
        intermediate_size=reader.count("intermediate_size"),
        vocab_size=reader.count("vocab_size"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=_head_dim(reader, row, num_heads),
        norm_eps=reader.positive("rms_norm_eps"),
        context_limit=reader.count("max_position_embeddings"),
        rope=read_rope(reader, row.rope_base),
        windows=_windows(reader, row),
        qkv_bias=_has_bias(reader, row.qkv_bias),
        out_bias=_has_bias(reader, row.out_bias),
        mlp_bias=_has_bias(reader, row.mlp_bias),
        has_qk_norm=row.has_qk_norm,
    )
    _refuse_other_biases(reader, row)
    reader.finish()
    return read


def _refuse_other_biases(reader: ConfigReader, row: Descriptor) -> None:
    biases = {row.qkv_bias, row.out_bias, row.mlp_bias}
    reader.only({key: (None, False) for key in ("attention_bias", "mlp_bias") if key not in biases})


def _may_omit_kv_heads(reader: ConfigReader, row: Descriptor) -> bool:
    return row.num_kv_heads_is_optional and reader.get("num_key_value_heads") is None


def _head_dim(reader: ConfigReader, row: Descriptor, num_heads: int) -> int:
    stated = reader.get("head_dim")
    if row.head_dim == "stated" or (row.head_dim == "stated or quotient" and stated):
        return reader.count("head_dim")
    reader.multiple("hidden_size", "num_attention_heads")
    quotient = max(reader.count("hidden_size") // num_heads, 1)
    if reader.is_count("hidden_size"):
        reader.only({"head_dim": (None, quotient)})
    return quotient


def _windows(reader: ConfigReader, row: Descriptor) -> tuple[int | None, ...]:
    num_layers = reader.count("num_hidden_layers", at_most=MOST_LAYERS)
    if not row.honours_layer_types:
        return (None,) * num_layers
    kinds = reader.layers("layer_types", num_layers, ("full_attention", "sliding_attention"))
    if kinds is None:
        return (None,) * num_layers
    return tuple(reader.count("sliding_window") if kind == "sliding_attention" else None for kind in kinds)


def _has_bias(reader: ConfigReader, bias: Bias) -> bool:
    return bias == "always" or (bias != "never" and reader.flag(bias))
