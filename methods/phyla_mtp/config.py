"""What a draft head's config says, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phyla.errors import DamagedCheckpoint, UnsupportedModel
from phyla.model.expert_sizes import ExpertSizes
from phyla.model.headers import text_section
from phyla.nn.rope_form import RopeForm, rope_form

DEFAULT_BLOCK = 3
DEFAULT_ROTATED_SHARE = 0.25


@dataclass(frozen=True)
class MtpConfig:
    """Sizes of the head's one layer, which are those of the target's full-attention layers."""

    hidden_size: int
    intermediate_size: int
    """Of a dense feed-forward block; 0 with experts."""

    experts: ExpertSizes | None
    num_heads: int
    num_kv_heads: int
    head_dim: int
    attention_bias: bool
    norm_eps: float
    rope: RopeForm
    num_rotated: int
    num_drafts: int
    """Drafts at once that it was made for."""


def mtp_config(config: Mapping[str, Any]) -> MtpConfig:
    """Read a companion's config, or that of a model whose head rides along.

    Raises:
        UnsupportedModel: a head of another form; names the key.
        DamagedCheckpoint: a size is missing; names the key.
    """
    section = text_section(config) or config
    _only(section, "mtp_num_hidden_layers", 1)
    _only(section, "mtp_use_dedicated_embeddings", False)
    experts = _experts(section) if section.get("num_experts") else None
    head_dim = int(section.get("head_dim") or _count(section, "hidden_size") // _count(section, "num_attention_heads"))
    nested = section.get("rope_parameters") or section.get("rope_scaling") or {}
    share = nested.get("partial_rotary_factor", section.get("partial_rotary_factor", DEFAULT_ROTATED_SHARE))
    block_size = config.get("block_size", DEFAULT_BLOCK)
    if not isinstance(block_size, int) or block_size < 2:
        raise DamagedCheckpoint(f"'block_size' is {block_size!r}; it counts the pending token and at least one draft.")
    return MtpConfig(
        hidden_size=_count(section, "hidden_size"),
        intermediate_size=0 if experts else _count(section, "intermediate_size"),
        experts=experts,
        num_heads=_count(section, "num_attention_heads"),
        num_kv_heads=_count(section, "num_key_value_heads"),
        head_dim=head_dim,
        attention_bias=bool(section.get("attention_bias", False)),
        norm_eps=float(section.get("rms_norm_eps", 1e-6)),
        rope=rope_form(section),
        num_rotated=int(head_dim * share),
        num_drafts=block_size - 1,
    )


def _experts(section: Mapping[str, Any]) -> ExpertSizes:
    sizes = ExpertSizes(
        num_experts=_count(section, "num_experts"),
        num_chosen=_count(section, "num_experts_per_tok"),
        intermediate_size=_count(section, "moe_intermediate_size"),
        shared_intermediate_size=_count(section, "shared_expert_intermediate_size"),
        is_normalised=bool(section.get("norm_topk_prob", True)),
    )
    if sizes.num_chosen > sizes.num_experts:
        raise DamagedCheckpoint(
            f"'num_experts_per_tok' ({sizes.num_chosen}) of the draft head is more than 'num_experts' "
            f"({sizes.num_experts})."
        )
    return sizes


def _only(section: Mapping[str, Any], key: str, known: Any) -> None:
    if section.get(key, known) != known:
        raise UnsupportedModel(f"A draft head with '{key}': {section[key]!r} isn't read here; it has to be {known!r}.")


def _count(section: Mapping[str, Any], key: str) -> int:
    value = section.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise DamagedCheckpoint(f"'{key}' of the draft head is {value!r}; it has to be a positive whole number.")
    return value
