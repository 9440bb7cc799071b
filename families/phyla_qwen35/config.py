"""A Qwen3.5 config, flat or with its language keys in `text_config`: checked, with every default resolved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from phyla.model.config_reader import MOST_LAYERS, ConfigReader
from phyla.model.expert_sizes import ExpertSizes
from phyla.model.headers import text_section
from phyla.model.quantization import QuantSection, parse_quant_section
from phyla.model.rope_config import read_rope
from phyla.nn.rope_form import RopeForm

Mixer = Literal["linear_attention", "full_attention"]

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

TOWERS = ("vision_config",)
AROUND_TEXT = (
    *TOWERS,
    "image_token_id",
    "video_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
    "language_model_only",
)
"""Keys beside `text_config`: the tower that isn't loaded, and what stands for it in a text."""

ROTATION = ("partial_rotary_factor", "mrope_section", "mrope_interleaved")
DRAFT_HEAD = ("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings")


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


def qwen35_config(config: Mapping[str, Any], has_head: bool | None = None) -> Qwen35Config:
    """Read and check a config.

    Args:
        config: flat, or with its language keys in `text_config`.
        has_head: whether the checkpoint has a tensor that could be the output projection, where that is known.

    Raises:
        UnsupportedModel: it asks for something this family doesn't do; names the keys.
        DamagedCheckpoint: a size is missing, or sizes contradict each other; names the keys.
    """
    section = text_section(config) or config
    architecture = str(config.get("model_type"))
    reader = ConfigReader({**_around(config, section), **section}, architecture)
    reader.knows(*AROUND_TEXT, *DRAFT_HEAD, "full_attention_interval")
    reader.only(ONLY)
    reader.attempt(lambda: parse_quant_section(config), QuantSection(None, {}))
    _check_head(reader, has_head)
    reader.multiple("num_attention_heads", "num_key_value_heads")
    num_heads = reader.count("num_attention_heads")
    experts = _experts(reader)
    head_dim = _head_dim(reader, num_heads)
    num_rotated = _num_rotated(reader, head_dim)
    read = Qwen35Config(
        architecture=architecture,
        hidden_size=reader.count("hidden_size"),
        intermediate_size=_dense_size(reader, experts),
        vocab_size=reader.count("vocab_size"),
        num_heads=num_heads,
        num_kv_heads=reader.count("num_key_value_heads"),
        head_dim=head_dim,
        attention_bias=reader.flag("attention_bias"),
        norm_eps=reader.positive("rms_norm_eps"),
        context_limit=reader.count("max_position_embeddings"),
        rope=_rope(reader),
        num_rotated=num_rotated,
        axis_sections=_axis_sections(reader, num_rotated // 2),
        mixers=_mixers(reader),
        delta=_delta(reader),
        experts=experts,
    )
    reader.finish()
    return read


def _around(config: Mapping[str, Any], section: Mapping[str, Any]) -> Mapping[str, Any]:
    """What stands beside the language keys; it counts as theirs where they don't say otherwise."""
    return {} if section is config else config


def _check_head(reader: ConfigReader, has_head: bool | None) -> None:
    if reader.flag("tie_word_embeddings") and has_head:
        reader.damaged(
            "'tie_word_embeddings' is true, and lm_head.weight is there all the same: which of the two is the head "
            "can't be told. Set 'tie_word_embeddings' to false to use it, or remove the tensor."
        )


def _dense_size(reader: ConfigReader, experts: ExpertSizes | None) -> int:
    reader.knows("intermediate_size")
    return 0 if experts else reader.count("intermediate_size")


def _delta(reader: ConfigReader) -> DeltaSizes:
    reader.multiple("linear_num_value_heads", "linear_num_key_heads")
    kernel = reader.count("linear_conv_kernel_dim")
    if kernel < 2:
        reader.damaged(f"'linear_conv_kernel_dim' is {kernel}; a convolution over time sees at least 2.")
    return DeltaSizes(
        num_key_heads=reader.count("linear_num_key_heads"),
        num_value_heads=reader.count("linear_num_value_heads"),
        key_dim=reader.count("linear_key_head_dim"),
        value_dim=reader.count("linear_value_head_dim"),
        kernel=kernel,
    )


def _experts(reader: ConfigReader) -> ExpertSizes | None:
    reader.knows("num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size", "norm_topk_prob")
    if reader.get("num_experts") in (None, 0):
        return None
    num_experts, num_chosen = reader.count("num_experts"), reader.count("num_experts_per_tok")
    if num_chosen > num_experts:
        reader.damaged(f"'num_experts_per_tok' ({num_chosen}) is more than 'num_experts' ({num_experts}).")
    return ExpertSizes(
        num_experts=num_experts,
        num_chosen=num_chosen,
        intermediate_size=reader.count("moe_intermediate_size"),
        shared_intermediate_size=reader.count("shared_expert_intermediate_size"),
        is_normalised=reader.flag("norm_topk_prob", default=True),
    )


def _mixers(reader: ConfigReader) -> tuple[Mixer, ...]:
    num_layers = reader.count("num_hidden_layers", at_most=MOST_LAYERS)
    kinds = reader.layers("layer_types", num_layers, ("linear_attention", "full_attention"))
    if kinds is None and reader.get("layer_types") is None:
        interval = reader.count("full_attention_interval")
        return tuple("linear_attention" if (index + 1) % interval else "full_attention" for index in range(num_layers))
    return tuple("full_attention" if kind == "full_attention" else "linear_attention" for kind in kinds or ())


def _head_dim(reader: ConfigReader, num_heads: int) -> int:
    if reader.get("head_dim") is not None:
        return reader.count("head_dim")
    reader.multiple("hidden_size", "num_attention_heads")
    return max(1, reader.count("hidden_size") // num_heads)


def _rope(reader: ConfigReader) -> RopeForm:
    form = read_rope(reader, more_keys=ROTATION)
    if form.kind != "default":
        reader.unsupported(f"'rope_parameters' is of type '{form.kind}'; this family knows 'default' only.")
    return form


def _num_rotated(reader: ConfigReader, head_dim: int) -> int:
    share = _rope_value(reader, "partial_rotary_factor")
    if share is None:
        share = DEFAULT_ROTATED_SHARE
    rotated = int(head_dim * share) if isinstance(share, int | float) and 0 < share <= 1 else 0
    if rotated < 2 or rotated % 2:
        reader.damaged(
            f"'partial_rotary_factor' is {share!r}; with a 'head_dim' of {head_dim} it has to leave an even number."
        )
    return rotated


def _axis_sections(reader: ConfigReader, num_pairs: int) -> tuple[int, int, int]:
    stated = _rope_value(reader, "mrope_section")
    if stated is None or num_pairs == 0:
        return (num_pairs, 0, 0)
    if _rope_value(reader, "mrope_interleaved") is False:
        reader.unsupported("'mrope_interleaved' is false; this family interleaves the position axes.")
    fits = isinstance(stated, list) and len(stated) == POSITION_AXES and all(isinstance(one, int) for one in stated)
    if not fits or sum(stated) != num_pairs or min(stated) < 0:
        reader.damaged(f"'mrope_section' is {stated!r}; it has to share out {num_pairs} pairs to 3 axes.")
        return (num_pairs, 0, 0)
    return (stated[0], stated[1], stated[2])


def _rope_value(reader: ConfigReader, key: str) -> Any:
    nested = reader.get("rope_parameters") or reader.get("rope_scaling") or {}
    outside = reader.get(key)
    return nested[key] if isinstance(nested, Mapping) and key in nested else outside
