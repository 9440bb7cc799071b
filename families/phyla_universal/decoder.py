"""The decoder: embedding, pre-norm blocks of attention and a gated feed-forward, norm, head.

Source:
    Touvron et al. 2023 (LLaMA), section 2.2, for the block; the rest is in `descriptor`.
"""

from __future__ import annotations

import mlx.core as mx
from phyla import Checkpoint, LoadOptions, ModelFacts, StepInput
from phyla.kv import Causal, LayerSpec, Windowed
from phyla.model.binding import LayerStates
from phyla.model.decoder import BlockDecoder
from phyla.model.loading import WeightLoader, load_weights
from phyla.nn.activation import GatedActivation, fused, swiglu
from phyla.nn.attention import Attention
from phyla.nn.mlp import GatedMLP
from phyla.nn.rope import Rope, rope_of

from phyla_universal.config import DecoderConfig, decoder_config
from phyla_universal.describe import HEAD, is_tied


class Block:
    """`h + attention(norm(h))`, then `h + mlp(norm(h))`."""

    def __init__(
        self, layer: LayerSpec, config: DecoderConfig, rope: Rope, activation: GatedActivation, load: WeightLoader
    ) -> None:
        path = f"model.layers.{layer.index}"
        self.input_norm = load.norm(f"{path}.input_layernorm", config.hidden_size, config.norm_eps)
        self.attention = _attention(f"{path}.self_attn", layer, config, rope, load)
        self.mlp_norm = load.norm(f"{path}.post_attention_layernorm", config.hidden_size, config.norm_eps)
        self.mlp = _mlp(f"{path}.mlp", config, activation, load)

    def __call__(self, hidden: mx.array, step: StepInput, states: LayerStates, index: int) -> mx.array:
        hidden = hidden + self.attention(self.input_norm(hidden), step, states[index])
        return hidden + self.mlp(self.mlp_norm(hidden), step.route)


def load_decoder(checkpoint: Checkpoint, facts: ModelFacts, options: LoadOptions) -> BlockDecoder:
    """Load the weights.

    Raises:
        WeightMismatch: tensors that are missing, unused or misshapen.
    """
    config = decoder_config(checkpoint.config)
    rope = rope_of(config.head_dim, config.rope)
    activation = fused(swiglu, options.compiled_activations)

    def build(load: WeightLoader) -> BlockDecoder:
        with load.group("embedding"):
            embedding = load.embedding("model.embed_tokens", config.vocab_size, config.hidden_size)
        blocks: list[Block] = []
        for layer in facts.layout:
            with load.group(f"layer {layer.index}"):
                blocks.append(Block(layer, config, rope, activation, load))
        with load.group("head"):
            norm = load.norm("model.norm", config.hidden_size, config.norm_eps)
            head = None if is_tied(checkpoint) else load.linear(HEAD, config.hidden_size, config.vocab_size)
        return BlockDecoder(facts, embedding, blocks, norm, head)

    return load_weights(checkpoint, options, build, facts.ignored_tensors)


def _attention(path: str, layer: LayerSpec, config: DecoderConfig, rope: Rope, load: WeightLoader) -> Attention:
    E, D = config.hidden_size, config.head_dim
    sizes = (config.num_heads * D, config.num_kv_heads * D, config.num_kv_heads * D)
    return Attention(
        qkv=load.fused([f"{path}.{part}_proj" for part in "qkv"], E, sizes, config.qkv_bias),
        out=load.linear(f"{path}.o_proj", config.num_heads * D, E, config.out_bias),
        rope=rope,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        mask=Causal() if layer.window is None else Windowed(layer.window),
        q_norm=load.norm(f"{path}.q_norm", D, config.norm_eps) if config.has_qk_norm else None,
        k_norm=load.norm(f"{path}.k_norm", D, config.norm_eps) if config.has_qk_norm else None,
    )


def _mlp(path: str, config: DecoderConfig, activation: GatedActivation, load: WeightLoader) -> GatedMLP:
    E, intermediate = config.hidden_size, config.intermediate_size
    return GatedMLP(
        gate_up=load.fused([f"{path}.gate_proj", f"{path}.up_proj"], E, (intermediate,) * 2, config.mlp_bias),
        down=load.linear(f"{path}.down_proj", intermediate, E, config.mlp_bias),
        activation=activation,
    )
