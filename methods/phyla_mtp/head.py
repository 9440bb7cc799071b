"""The draft head: a token's embedding and the hidden row before it, joined and sent through one more layer."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
from phyla import Checkpoint, LoadOptions, StepInput
from phyla.kv import Causal
from phyla.kv.kinds import KeyValueCache
from phyla.model.feed_forward import gated_mlp, mlp_with_experts
from phyla.model.loading import WeightLoader, check_headers, load_weights
from phyla.nn.activation import GatedActivation, fused, swiglu
from phyla.nn.attention import Attention
from phyla.nn.linear import Linear
from phyla.nn.mlp import GatedMLP
from phyla.nn.moe import SharedExpertMLP
from phyla.nn.norm import RMSNorm
from phyla.nn.rope import rope_of

from phyla_mtp.artifact import BLOCK, prefix_of
from phyla_mtp.config import MtpConfig, mtp_config

SHIFTED_BELOW = 0.5
"""Norms are near one; stored as their difference to one they are near zero."""

NORMS = (
    "norm",
    "pre_fc_norm_embedding",
    "pre_fc_norm_hidden",
    f"{BLOCK}.input_layernorm",
    f"{BLOCK}.post_attention_layernorm",
)


@dataclass(frozen=True)
class MtpHead:
    """Row p takes the embedding of token p + 1 and the hidden row of position p, and speaks of token p + 2.

    Source:
        Gloeckle et al. 2024; DeepSeek-AI 2024 (DeepSeek-V3), section 2.2, eq. 21 to 23, with the embedding first and a
        norm of its own at the end.
    """

    embedding_norm: RMSNorm
    hidden_norm: RMSNorm
    join: Linear
    input_norm: RMSNorm
    attention: Attention
    mlp_norm: RMSNorm
    mlp: GatedMLP | SharedExpertMLP
    norm: RMSNorm

    def __call__(self, embedded: mx.array, hidden: mx.array, step: StepInput, cache: KeyValueCache) -> mx.array:
        """What the target's output projection is applied to, and what stands in for the hidden row of a guessed token.

        Args:
            embedded: (1, B*L, E) unscaled embeddings of tokens p + 1.
            hidden: (1, B*L, E): the target's last layer at positions p, before its final norm.
            step: positions are those of the head's own rows.
            cache: this step's rows are appended to it.
        """
        joined = self.join(mx.concatenate([self.embedding_norm(embedded), self.hidden_norm(hidden)], axis=-1))
        joined = joined + self.attention(self.input_norm(joined), step, cache)
        return self.norm(joined + self.mlp(self.mlp_norm(joined), step.route))


def load_head(checkpoint: Checkpoint, options: LoadOptions) -> MtpHead:
    """Load a companion, or the head among a model's own tensors.

    Raises:
        WeightMismatch: tensors that are missing, unused or misshapen.
    """
    config, prefix = mtp_config(checkpoint.config), prefix_of(checkpoint)
    adds_one = bool(prefix) and _stores_differences(checkpoint, prefix)
    activation = fused(swiglu, options.compiled_activations)
    return load_weights(
        checkpoint,
        options,
        lambda load: _built(config, prefix, adds_one, activation, load),
        _others(checkpoint, prefix),
    )


def check_head(checkpoint: Checkpoint) -> None:
    """Refuse from headers what `load_head` would refuse.

    Raises:
        CheckpointError: what is wrong with the config or the tensors, all of it.
    """
    config, prefix = mtp_config(checkpoint.config), prefix_of(checkpoint)
    check_headers(checkpoint, lambda load: _built(config, prefix, False, swiglu, load), _others(checkpoint, prefix))


def _others(checkpoint: Checkpoint, prefix: str) -> list[str]:
    """The tensors of the model that the head rides along with."""
    return [name for name in checkpoint.tensor_infos() if not name.startswith(prefix)]


def _built(config: MtpConfig, prefix: str, adds_one: bool, activation: GatedActivation, load: WeightLoader) -> MtpHead:
    E, D, bias = config.hidden_size, config.head_dim, config.attention_bias

    def norm(path: str, width: int = E) -> RMSNorm:
        return load.norm(f"{prefix}{path}", width, config.norm_eps, adds_one)

    path = f"{prefix}{BLOCK}"
    sizes = (2 * config.num_heads * D, config.num_kv_heads * D, config.num_kv_heads * D)
    with load.group("draft head"):
        return MtpHead(
            embedding_norm=norm("pre_fc_norm_embedding"),
            hidden_norm=norm("pre_fc_norm_hidden"),
            join=load.linear(f"{prefix}fc", 2 * E, E),
            input_norm=norm(f"{BLOCK}.input_layernorm"),
            attention=Attention(
                load.fused([f"{path}.self_attn.{part}_proj" for part in "qkv"], E, sizes, bias),
                load.linear(f"{path}.self_attn.o_proj", config.num_heads * D, E, bias),
                rope_of(config.num_rotated, config.rope),
                config.num_heads,
                config.num_kv_heads,
                Causal(),
                norm(f"{BLOCK}.self_attn.q_norm", D),
                norm(f"{BLOCK}.self_attn.k_norm", D),
                output_gate=True,
            ),
            mlp_norm=norm(f"{BLOCK}.post_attention_layernorm"),
            mlp=_feed_forward(f"{path}.mlp", config, activation, load),
            norm=norm("norm"),
        )


def _feed_forward(
    path: str, config: MtpConfig, activation: GatedActivation, load: WeightLoader
) -> GatedMLP | SharedExpertMLP:
    if config.experts is None:
        return gated_mlp(path, config.hidden_size, config.intermediate_size, activation, load)
    return mlp_with_experts(path, config.hidden_size, config.experts, activation, load)


def _stores_differences(checkpoint: Checkpoint, prefix: str) -> bool:
    """Published heads do and converted ones don't; names are the same, so the values decide."""
    stored = checkpoint.load([f"{prefix}{name}.weight" for name in NORMS])
    means = [one.astype(mx.float32).mean() for one in stored.values()]
    return float(mx.stack(means).mean().item()) < SHIFTED_BELOW  # type: ignore[arg-type]
