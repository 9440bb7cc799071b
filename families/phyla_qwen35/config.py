"""A Qwen3.5 config, flat or with its language keys in `text_config`: checked, with every default resolved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from phyla.errors import DamagedCheckpoint, UnsupportedModel
from phyla.model.headers import text_section
from phyla.nn.rope_form import RopeForm, rope_form

Mixer = Literal["linear_attention", "full_attention"]

MOST_LAYERS = 4096
DEFAULT_ROTATED_SHARE = 0.25
POSITION_AXES = 3
"""Time, height and width; equal for text."""

ONLY: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": (None, "silu", "swish"),
    "attn_output_gate": (None, True),
    "output_gate_type": (None, "swish", "silu"),
    "mamba_ssm_dtype": (None, "float32"),
    "mlp_only_layers": (None, []),
    "decoder_sparse_step": (None, 1),
    "use_sliding_window": (None, False),
    "sliding_window": (None,),
}
"""Keys that could ask for another model, with the values that ask for this one."""


@dataclass(frozen=True)
class DeltaSizes:
    """Sizes of the gated delta layers."""

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    """Inputs that the convolution sees, this position's included."""

    @property
    def keys_width(self) -> int:
        return self.num_key_heads * self.key_dim

    @property
    def values_width(self) -> int:
        return self.num_value_heads * self.value_dim

    @property
    def mixed_width(self) -> int:
        """Queries, keys and values side by side: the channels of the convolution."""
        return 2 * self.keys_width + self.values_width


@dataclass(frozen=True)
class ExpertSizes:
    """Sizes of the feed-forward blocks with experts."""

    num_experts: int
    num_chosen: int
    intermediate_size: int
    shared_intermediate_size: int
    is_normalised: bool


@dataclass(frozen=True)
class Qwen35Config:
    """What the decoder is built from."""

    architecture: str
    hidden_size: int
    intermediate_size: int
    """Of the dense feed-forward blocks; 0 with experts."""

    vocab_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    attention_bias: bool
    norm_eps: float
    context_limit: int
    rope: RopeForm
    num_rotated: int
    """Numbers of each head that are rotated."""

    axis_sections: tuple[int, int, int]
    """Rotated pairs per position axis."""

    mixers: tuple[Mixer, ...]
    delta: DeltaSizes
    experts: ExpertSizes | None


def qwen35_config(config: Mapping[str, Any]) -> Qwen35Config:
    """Read and check a config.

    Raises:
        UnsupportedModel: it asks for something this family doesn't do; names the key.
        DamagedCheckpoint: a size is missing, or sizes contradict each other; names the key.
    """
    section = text_section(config) or config
    architecture = str(config.get("model_type"))
    for key, allowed in ONLY.items():
        if section.get(key) not in allowed:
            raise UnsupportedModel(
                f"A {architecture} model with '{key}': {section[key]!r} isn't known here; it has to be one of "
                f"{', '.join(repr(one) for one in allowed if one is not None) or 'absent'}."
            )
    num_heads, num_kv_heads = _count(section, "num_attention_heads"), _count(section, "num_key_value_heads")
    _divides(section, "num_attention_heads", "num_key_value_heads")
    experts = _experts(section)
    head_dim = _head_dim(section, num_heads)
    num_rotated = _num_rotated(section, head_dim)
    return Qwen35Config(
        architecture=architecture,
        hidden_size=_count(section, "hidden_size"),
        intermediate_size=0 if experts else _count(section, "intermediate_size"),
        vocab_size=_count(section, "vocab_size"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        attention_bias=bool(section.get("attention_bias", False)),
        norm_eps=_positive(section, "rms_norm_eps"),
        context_limit=_count(section, "max_position_embeddings"),
        rope=_rope(section),
        num_rotated=num_rotated,
        axis_sections=_axis_sections(section, num_rotated // 2),
        mixers=_mixers(section),
        delta=_delta(section),
        experts=experts,
    )


def _delta(section: Mapping[str, Any]) -> DeltaSizes:
    _divides(section, "linear_num_value_heads", "linear_num_key_heads")
    kernel = _count(section, "linear_conv_kernel_dim")
    if kernel < 2:
        raise DamagedCheckpoint(f"'linear_conv_kernel_dim' is {kernel}; a convolution over time sees at least 2.")
    return DeltaSizes(
        num_key_heads=_count(section, "linear_num_key_heads"),
        num_value_heads=_count(section, "linear_num_value_heads"),
        key_dim=_count(section, "linear_key_head_dim"),
        value_dim=_count(section, "linear_value_head_dim"),
        kernel=kernel,
    )


def _experts(section: Mapping[str, Any]) -> ExpertSizes | None:
    if section.get("num_experts") in (None, 0):
        return None
    num_experts, num_chosen = _count(section, "num_experts"), _count(section, "num_experts_per_tok")
    if num_chosen > num_experts:
        raise DamagedCheckpoint(f"'num_experts_per_tok' ({num_chosen}) is more than 'num_experts' ({num_experts}).")
    return ExpertSizes(
        num_experts=num_experts,
        num_chosen=num_chosen,
        intermediate_size=_count(section, "moe_intermediate_size"),
        shared_intermediate_size=_count(section, "shared_expert_intermediate_size"),
        is_normalised=bool(section.get("norm_topk_prob", True)),
    )


def _mixers(section: Mapping[str, Any]) -> tuple[Mixer, ...]:
    num_layers = _count(section, "num_hidden_layers")
    if num_layers > MOST_LAYERS:
        raise DamagedCheckpoint(f"'num_hidden_layers' is {num_layers}; no model has more than {MOST_LAYERS}.")
    stated = section.get("layer_types")
    if stated is None:
        interval = _count(section, "full_attention_interval")
        return tuple("linear_attention" if (index + 1) % interval else "full_attention" for index in range(num_layers))
    if not isinstance(stated, Sequence) or len(stated) != num_layers:
        raise DamagedCheckpoint(f"'layer_types' is {stated!r}; it has to name {num_layers} layers.")
    return tuple(_mixer(one) for one in stated)


def _mixer(stated: Any) -> Mixer:
    if stated == "linear_attention":
        return "linear_attention"
    if stated == "full_attention":
        return "full_attention"
    raise UnsupportedModel(f"'layer_types' names {stated!r}; known are linear_attention and full_attention.")


def _head_dim(section: Mapping[str, Any], num_heads: int) -> int:
    if section.get("head_dim") is not None:
        return _count(section, "head_dim")
    _divides(section, "hidden_size", "num_attention_heads")
    return _count(section, "hidden_size") // num_heads


def _rope(section: Mapping[str, Any]) -> RopeForm:
    form = rope_form(section)
    if form.kind != "default":
        raise UnsupportedModel(f"'rope_parameters' is of type '{form.kind}'; this family knows 'default' only.")
    return form


def _num_rotated(section: Mapping[str, Any], head_dim: int) -> int:
    share = _rope_value(section, "partial_rotary_factor")
    if share is None:
        share = DEFAULT_ROTATED_SHARE
    rotated = int(head_dim * share) if isinstance(share, int | float) else 0
    if not 0 < rotated <= head_dim or rotated % 2:
        raise DamagedCheckpoint(
            f"'partial_rotary_factor' is {share!r}; with a 'head_dim' of {head_dim} it has to leave an even number."
        )
    return rotated


def _axis_sections(section: Mapping[str, Any], num_pairs: int) -> tuple[int, int, int]:
    stated = _rope_value(section, "mrope_section")
    if stated is None:
        return (num_pairs, 0, 0)
    fits = isinstance(stated, list) and len(stated) == POSITION_AXES and all(isinstance(one, int) for one in stated)
    if not fits or sum(stated) != num_pairs or min(stated) < 0:
        raise DamagedCheckpoint(f"'mrope_section' is {stated!r}; it has to share out {num_pairs} pairs to 3 axes.")
    if _rope_value(section, "mrope_interleaved") is False:
        raise UnsupportedModel("'mrope_interleaved' is false; this family interleaves the position axes.")
    return (stated[0], stated[1], stated[2])


def _rope_value(section: Mapping[str, Any], key: str) -> Any:
    nested = section.get("rope_parameters") or section.get("rope_scaling") or {}
    return nested[key] if isinstance(nested, Mapping) and key in nested else section.get(key)


def _divides(section: Mapping[str, Any], whole: str, part: str) -> None:
    if _count(section, whole) % _count(section, part):
        raise DamagedCheckpoint(f"'{whole}' ({section[whole]}) isn't a multiple of '{part}' ({section[part]}).")


def _count(section: Mapping[str, Any], key: str) -> int:
    value = section.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise DamagedCheckpoint(f"'{key}' is {value!r}; it has to be a positive whole number.")
    return value


def _positive(section: Mapping[str, Any], key: str) -> float:
    value = section.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise DamagedCheckpoint(f"'{key}' is {value!r}; it has to be a positive number.")
    return float(value)
