"""The toy, runnable."""

from __future__ import annotations

from collections.abc import Mapping

import mlx.core as mx

from phyla.kv.layer_spec import LATENT, RECURRENT
from phyla.kv.mask import Causal, Mask, Windowed
from phyla.model.binding import LayerStates, ModelBinding
from phyla.model.facts import ModelFacts
from phyla.model.step import StepInput
from phyla.nn.activation import swiglu
from phyla.nn.attention import Attention
from phyla.nn.embedding import Embedding, embed_step
from phyla.nn.linear import FusedLinear, Linear
from phyla.nn.mlp import GatedMLP
from phyla.nn.norm import RMSNorm
from phyla.nn.rope import Rope
from phyla.nn.weight import Weight
from phyla.testing.toy.config import ToyConfig
from phyla.testing.toy.mixers import GatedRecurrence, LatentAttention

Tensors = Mapping[str, mx.array]


class ToyBinding(ModelBinding):
    """Embedding, pre-norm blocks of any kind, norm, head.

    Args:
        tensors: by the names of `toy_shapes`.
    """

    def __init__(self, config: ToyConfig, facts: ModelFacts, tensors: Tensors) -> None:
        super().__init__(facts)
        self._embedding = Embedding(Weight(tensors["embed.weight"]))
        self._norm = RMSNorm(tensors["norm.weight"], config.rms_norm_eps)
        self._head = Linear(Weight(tensors["head.weight"]))
        self._blocks = [_Block(layer.index, layer.kind, config, tensors) for layer in facts.layout]

    def embed(self, step: StepInput) -> mx.array:
        return embed_step(self._embedding, step)

    def layer(self, index: int, hidden: mx.array, step: StepInput, states: LayerStates) -> mx.array:
        block = self._blocks[index]
        hidden = hidden + block.mixer(block.input_norm(hidden), step, states[index])
        return hidden + block.mlp(block.mlp_norm(hidden), step.route)

    def head(self, hidden: mx.array) -> mx.array:
        return self.project(self.final_norm(hidden))

    def final_norm(self, hidden: mx.array) -> mx.array:
        return self._norm(hidden)

    def embed_ids(self, ids: mx.array) -> mx.array:
        return self._embedding(ids)

    def project(self, hidden: mx.array) -> mx.array:
        return self._head(hidden)


class _Block:
    def __init__(self, index: int, kind: str, config: ToyConfig, tensors: Tensors) -> None:
        def linear(name: str) -> Linear:
            return Linear(Weight(tensors[f"layers.{index}.{name}.weight"]))

        def norm(name: str) -> RMSNorm:
            return RMSNorm(tensors[f"layers.{index}.{name}.weight"], config.rms_norm_eps)

        self.input_norm = norm("input_norm")
        self.mlp_norm = norm("mlp_norm")
        self.mlp = GatedMLP(FusedLinear([linear("gate"), linear("up")]), linear("down"), swiglu)
        self.mixer: Attention | GatedRecurrence | LatentAttention
        if kind == RECURRENT:
            self.mixer = GatedRecurrence(linear("decay"), linear("update"), linear("output_gate"), linear("o"))
        elif kind == LATENT:
            self.mixer = LatentAttention(linear("q"), linear("latent"), linear("k_rope"), linear("o"), config)
        else:
            self.mixer = Attention(
                FusedLinear([linear("q"), linear("k"), linear("v")]),
                linear("o"),
                Rope(config.head_dim, base=config.rope_theta),
                config.num_attention_heads,
                config.num_key_value_heads,
                _mask(kind, config),
            )


def _mask(kind: str, config: ToyConfig) -> Mask:
    return Windowed(config.sliding_window) if kind == "sliding" else Causal()
