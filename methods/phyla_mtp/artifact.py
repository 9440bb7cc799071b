"""Where a draft head is found, what it is made of, and whom it fits. Headers only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from phyla import DraftFacts, LayerSpec
from phyla.draft.heads import EMBEDDING_HEAD
from phyla.errors import CheckpointError
from phyla.kv import FULL, RECURRENT, SUPPORTED, Plane, Support, refused
from phyla.model.step import Tap

from phyla_mtp.config import MtpConfig, mtp_config

if TYPE_CHECKING:
    from phyla import Checkpoint, Drafter, DraftTarget, ModelFacts

COMPANION = "mtp"
TARGETS = frozenset({"qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"})
PREFIXES = ("mtp.", "model.mtp.", "language_model.mtp.", "language_model.model.mtp.", "")
"""How a head's tensors are spelt; a companion has no prefix."""

BLOCK = "layers.0"
JOINED_EXPERTS = f"{BLOCK}.mlp.experts.gate_up_proj"
"""Gate and up of all experts as one tensor, as models are published; converters take them apart."""

CARRY = "hidden"
"""Plane of the state's second layer: the hidden row that the next token is paired with."""


def is_draft_head(config: Mapping[str, Any]) -> bool:
    """Whether a config is a companion's."""
    return str(config.get("model_type", "")).startswith("qwen3_5") and str(config["model_type"]).endswith("_mtp")


def bundled(target: Checkpoint) -> Checkpoint | None:
    """The head inside the model's folder, or among its tensors."""
    companion = target.companion(COMPANION)
    if companion is not None and is_draft_head(companion.config):
        return companion
    is_there = any(f"{prefix}fc.weight" in target.tensor_infos() for prefix in PREFIXES if prefix)
    return target if is_there and target.config.get("model_type") in TARGETS else None


def prefix_of(checkpoint: Checkpoint) -> str:
    """How this checkpoint spells the head; "" also where it has none."""
    infos = checkpoint.tensor_infos()
    return next((prefix for prefix in PREFIXES if f"{prefix}fc.weight" in infos), "")


def draft_facts(target: ModelFacts, checkpoint: Checkpoint, depth: int | None) -> DraftFacts:
    """Facts of a head beside its target."""
    config, prefix = mtp_config(checkpoint.config), prefix_of(checkpoint)
    infos = checkpoint.tensor_infos().values()
    is_own = prefix == ""
    return DraftFacts(
        layout=layout_of(config),
        weight_bytes=sum(info.num_bytes for info in infos if is_own or info.name.startswith(prefix)),
        taps=(Tap(len(target.layout) - 1),),
        heads=(EMBEDDING_HEAD,),
        lag=1,
        max_tokens=depth or config.num_drafts,
        identity=checkpoint.fingerprint,
    )


def support(target: DraftTarget, drafter: Drafter | None) -> Support:
    """Whether the head is whole and of the target's sizes."""
    assert drafter is not None, "it needs a drafter"
    checkpoint = drafter.checkpoint
    if target.facts.architecture not in TARGETS:
        return refused(f"{checkpoint.model_id} is a head for Qwen3.5, and the model is a {target.facts.architecture}")
    try:
        config = mtp_config(checkpoint.config)
    except CheckpointError as error:
        return refused(f"{checkpoint.model_id}: {error}")
    if config.hidden_size != target.facts.hidden_size:
        return refused(
            f"{checkpoint.model_id} is for hidden rows of {config.hidden_size} numbers and the model's have "
            f"{target.facts.hidden_size}"
        )
    prefix = prefix_of(checkpoint)
    wanted = shapes(config, are_joined=f"{prefix}{JOINED_EXPERTS}" in checkpoint.tensor_infos())
    missing = [name for name in wanted if f"{prefix}{name}" not in checkpoint.tensor_infos()]
    if missing:
        return refused(
            f"{checkpoint.model_id} is only part of a head: {len(missing)} tensors such as {missing[0]} lack"
        )
    misshapen = [name for name, shape in wanted.items() if not _fits(checkpoint, prefix + name, shape)]
    return refused(f"{misshapen[0]} of {checkpoint.model_id} isn't of the config's shape") if misshapen else SUPPORTED


def shapes(config: MtpConfig, *, are_joined: bool = False) -> dict[str, tuple[int, ...]]:
    """Every weight of a head by its name behind the prefix.

    Args:
        config: the head's.
        are_joined: its experts come as one tensor, as they are published.
    """
    E, D = config.hidden_size, config.head_dim
    queries, stored = config.num_heads * D, config.num_kv_heads * D
    return {
        "fc.weight": (E, 2 * E),
        "pre_fc_norm_embedding.weight": (E,),
        "pre_fc_norm_hidden.weight": (E,),
        "norm.weight": (E,),
        f"{BLOCK}.input_layernorm.weight": (E,),
        f"{BLOCK}.post_attention_layernorm.weight": (E,),
        f"{BLOCK}.self_attn.q_proj.weight": (2 * queries, E),
        f"{BLOCK}.self_attn.k_proj.weight": (stored, E),
        f"{BLOCK}.self_attn.v_proj.weight": (stored, E),
        f"{BLOCK}.self_attn.o_proj.weight": (E, queries),
        f"{BLOCK}.self_attn.q_norm.weight": (D,),
        f"{BLOCK}.self_attn.k_norm.weight": (D,),
        **{f"{BLOCK}.mlp.{name}": shape for name, shape in _feed_forward(config, are_joined).items()},
    }


def _feed_forward(config: MtpConfig, are_joined: bool) -> dict[str, tuple[int, ...]]:
    E, sizes = config.hidden_size, config.experts
    if sizes is None:
        return _gated("", E, config.intermediate_size)
    count, inner = sizes.num_experts, sizes.intermediate_size
    joined = {"experts.gate_up_proj": (count, 2 * inner, E), "experts.down_proj": (count, E, inner)}
    apart = {
        "switch_mlp.gate_proj.weight": (count, inner, E),
        "switch_mlp.up_proj.weight": (count, inner, E),
        "switch_mlp.down_proj.weight": (count, E, inner),
    }
    return {
        "gate.weight": (count, E),
        **(joined if are_joined else apart),
        **_gated("shared_expert.", E, sizes.shared_intermediate_size),
        "shared_expert_gate.weight": (1, E),
    }


def _gated(prefix: str, width: int, inner: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}gate_proj.weight": (inner, width),
        f"{prefix}up_proj.weight": (inner, width),
        f"{prefix}down_proj.weight": (width, inner),
    }


def _fits(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> bool:
    infos = checkpoint.tensor_infos()
    is_packed = f"{name.removesuffix('.weight')}.scales" in infos
    return infos[name].shape[:-1] == shape[:-1] if is_packed else infos[name].shape == shape


def layout_of(config: MtpConfig) -> tuple[LayerSpec, ...]:
    """The layer's keys and values, and the row that is carried from step to step."""
    return (
        LayerSpec(
            0,
            FULL,
            tuple(Plane(name, config.num_kv_heads, config.head_dim) for name in ("keys", "values")),
            scale=config.head_dim**-0.5,
            num_query_heads=config.num_heads,
        ),
        LayerSpec(1, RECURRENT, (Plane(CARRY, 1, config.hidden_size, per_token=False),)),
    )
