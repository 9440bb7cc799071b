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
PREFIXES = ("mtp.", "model.mtp.", "language_model.mtp.", "language_model.model.mtp.")
"""How a head's tensors are spelt among a model's; those of a companion have no prefix."""

BLOCK = "layers.0"
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
    return target if prefix_of(target) and target.config.get("model_type") in TARGETS else None


def prefix_of(checkpoint: Checkpoint) -> str:
    """How this checkpoint spells the head; "" also where it has none."""
    # By any of its tensors: of half a head it has to be said which ones are missing.
    spelt = {prefix for prefix in PREFIXES for name in checkpoint.tensor_infos() if name.startswith(prefix)}
    return next((prefix for prefix in PREFIXES if prefix in spelt), "")


def draft_facts(target: ModelFacts, checkpoint: Checkpoint, depth: int | None) -> DraftFacts:
    """Facts of a head beside its target."""
    config, prefix = mtp_config(checkpoint.config), prefix_of(checkpoint)
    infos = checkpoint.tensor_infos().values()
    return DraftFacts(
        layout=layout_of(config),
        weight_bytes=sum(info.num_bytes for info in infos if info.name.startswith(prefix)),
        taps=(Tap(len(target.layout) - 1),),
        heads=(EMBEDDING_HEAD,),
        lag=1,
        max_tokens=depth or config.num_drafts,
        identity=checkpoint.fingerprint,
    )


def support(target: DraftTarget, drafter: Drafter | None) -> Support:
    """Whether the head is whole, in a form that is read here, and of the target's sizes."""
    from phyla_mtp.head import check_head

    assert drafter is not None, "it needs a drafter"
    checkpoint = drafter.checkpoint
    if target.facts.architecture not in TARGETS:
        return refused(f"{checkpoint.model_id} is a head for Qwen3.5, and the model is a {target.facts.architecture}")
    try:
        config = mtp_config(checkpoint.config)
        if config.hidden_size != target.facts.hidden_size:
            return refused(
                f"{checkpoint.model_id} is for hidden rows of {config.hidden_size} numbers and the model's have "
                f"{target.facts.hidden_size}"
            )
        check_head(checkpoint)
    except CheckpointError as error:
        return refused(f"the draft head in {checkpoint.model_id} can't be read. {str(error).removesuffix('.')}")
    return SUPPORTED


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
