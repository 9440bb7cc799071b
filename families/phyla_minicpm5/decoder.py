"""The decoder: embedding, pre-norm blocks of grouped attention and a gated feed-forward, norm, head of its own.

Source:
    Touvron et al. 2023 (LLaMA), section 2.2; grouped heads: Ainslie et al. 2023, section 2.2.
    We differ: the heads are wider together than the hidden rows, so that queries leave E for H*D and `out` comes back.
"""

from __future__ import annotations

import mlx.core as mx
from phyla import Checkpoint, LoadOptions, ModelFacts, StepInput
from phyla.kv import Causal
from phyla.model.binding import LayerStates
from phyla.model.decoder import BlockDecoder
from phyla.model.loading import WeightLoader, load_weights
from phyla.nn.activation import GatedActivation, fused, swiglu
from phyla.nn.attention import Attention
from phyla.nn.mlp import GatedMLP
from phyla.nn.rope import Rope, rope_of
from phyla.nn.rope_form import RopeForm

from phyla_minicpm5.shape import ROPE_BASE, Shape, shape_of


class Block:
    """`h + attention(norm(h))`, then `h + mlp(norm(h))`."""

    def __init__(self, path: str, shape: Shape, rope: Rope, activation: GatedActivation, load: WeightLoader) -> None:
        self.input_norm = load.norm(f"{path}.input_layernorm", shape.hidden_size, shape.norm_eps)
        self.attention = _attention(f"{path}.self_attn", shape, rope, load)
        self.mlp_norm = load.norm(f"{path}.post_attention_layernorm", shape.hidden_size, shape.norm_eps)
        self.mlp = _mlp(f"{path}.mlp", shape, activation, load)

    def __call__(self, hidden: mx.array, step: StepInput, states: LayerStates, index: int) -> mx.array:
        hidden = hidden + self.attention(self.input_norm(hidden), step, states[index])
        return hidden + self.mlp(self.mlp_norm(hidden), step.route)


def load_decoder(checkpoint: Checkpoint, facts: ModelFacts, options: LoadOptions) -> BlockDecoder:
    """Load the weights.

    Raises:
        WeightMismatch: tensors that are missing, unused or misshapen.
    """
    shape = shape_of(checkpoint.config)
    rope = rope_of(shape.head_dim, RopeForm(base=ROPE_BASE))
    activation = fused(swiglu, options.compiled_activations)

    def build(load: WeightLoader) -> BlockDecoder:
        with load.group("embedding"):
            embedding = load.embedding("model.embed_tokens", shape.vocab_size, shape.hidden_size)
        blocks: list[Block] = []
        for index in range(shape.num_layers):
            with load.group(f"layer {index}"):
                blocks.append(Block(f"model.layers.{index}", shape, rope, activation, load))
        with load.group("head"):
            norm = load.norm("model.norm", shape.hidden_size, shape.norm_eps)
            head = load.linear("lm_head", shape.hidden_size, shape.vocab_size)
        return BlockDecoder(facts, embedding, blocks, norm, head)

    return load_weights(checkpoint, options, build, facts.ignored_tensors)


def _attention(path: str, shape: Shape, rope: Rope, load: WeightLoader) -> Attention:
    E, D = shape.hidden_size, shape.head_dim
    sizes = (shape.num_heads * D, shape.num_kv_heads * D, shape.num_kv_heads * D)
    return Attention(
        qkv=load.fused([f"{path}.{part}_proj" for part in "qkv"], E, sizes),
        out=load.linear(f"{path}.o_proj", shape.num_heads * D, E),
        rope=rope,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        mask=Causal(),
    )


def _mlp(path: str, shape: Shape, activation: GatedActivation, load: WeightLoader) -> GatedMLP:
    E, intermediate = shape.hidden_size, shape.intermediate_size
    return GatedMLP(
        gate_up=load.fused([f"{path}.gate_proj", f"{path}.up_proj"], E, (intermediate, intermediate)),
        down=load.linear(f"{path}.down_proj", intermediate, E),
        activation=activation,
    )
