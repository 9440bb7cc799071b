"""The decoder: embedding, pre-norm blocks of a mixer and a feed-forward, norm, head."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
from phyla import Checkpoint, LoadOptions, ModelFacts, StepInput
from phyla.kv import RECURRENT, LayerSpec
from phyla.model.binding import LayerStates
from phyla.model.decoder import BlockDecoder
from phyla.model.feed_forward import gated_mlp, mlp_with_experts
from phyla.model.loading import WeightLoader, load_weights
from phyla.model.quantization import parse_quant_section
from phyla.nn.activation import GatedActivation, fused, swiglu
from phyla.nn.mlp import GatedMLP
from phyla.nn.moe import SharedExpertMLP
from phyla.nn.norm import RMSNorm
from phyla.nn.rope import Rope, rope_of

from phyla_qwen35.attention import GatedAttention
from phyla_qwen35.config import Qwen35Config, qwen35_config
from phyla_qwen35.delta_layer import DeltaKernels, GatedDeltaLayer, Recurrence
from phyla_qwen35.describe import is_tied
from phyla_qwen35.names import EMBEDDING, Names, names_of
from phyla_qwen35.positions import AxisRope


@dataclass(frozen=True)
class Shared:
    """What all blocks of a model have in common."""

    config: Qwen35Config
    names: Names
    rope: Rope
    activation: GatedActivation
    kernels: DeltaKernels


class Block:
    """`h + mixer(norm(h))`, then `h + mlp(norm(h))`."""

    def __init__(self, layer: LayerSpec, shared: Shared, load: WeightLoader) -> None:
        path = shared.names.of(f"layers.{layer.index}")
        self.input_norm = _norm(f"{path}.input_layernorm", shared, load)
        self.mixer = _mixer(path, layer, shared, load)
        self.mlp_norm = _norm(f"{path}.post_attention_layernorm", shared, load)
        self.mlp = _mlp(f"{path}.mlp", shared, load)

    def __call__(self, hidden: mx.array, step: StepInput, states: LayerStates, index: int) -> mx.array:
        hidden = hidden + self.mixer(self.input_norm(hidden), step, states[index])
        return hidden + self.mlp(self.mlp_norm(hidden), step.route)


def load_decoder(checkpoint: Checkpoint, facts: ModelFacts, options: LoadOptions) -> BlockDecoder:
    """Load the weights.

    Raises:
        WeightMismatch: tensors that are missing, unused or misshapen.
    """
    config, names = qwen35_config(checkpoint.config), names_of(checkpoint)
    shared = Shared(
        config,
        names,
        rope_of(config.num_rotated, config.rope),
        fused(swiglu, options.compiled_activations),
        DeltaKernels(options.compiled_activations),
    )

    def build(load: WeightLoader) -> BlockDecoder:
        with load.group("embedding"):
            embedding = load.embedding(names.of(EMBEDDING), config.vocab_size, config.hidden_size)
        blocks: list[Block] = []
        for layer in facts.layout:
            with load.group(f"layer {layer.index}"):
                blocks.append(Block(layer, shared, load))
        with load.group("head"):
            norm = _norm(names.of("norm"), shared, load)
            tied = is_tied(checkpoint, names)
            head = None if tied else load.linear(names.head, config.hidden_size, config.vocab_size)
        return BlockDecoder(facts, embedding, blocks, norm, head)

    section = parse_quant_section(checkpoint.config).renamed(names.respelt)
    return load_weights(checkpoint, options, build, facts.ignored_tensors, section)


def _norm(path: str, shared: Shared, load: WeightLoader, width: int | None = None) -> RMSNorm:
    config = shared.config
    return load.norm(path, width or config.hidden_size, config.norm_eps, adds_one=shared.names.is_published)


def _mixer(path: str, layer: LayerSpec, shared: Shared, load: WeightLoader) -> GatedDeltaLayer | GatedAttention:
    if layer.kind == RECURRENT:
        return _delta_layer(f"{path}.linear_attn", shared, load)
    return _attention(f"{path}.self_attn", shared, load)


def _delta_layer(path: str, shared: Shared, load: WeightLoader) -> GatedDeltaLayer:
    E, sizes = shared.config.hidden_size, shared.config.delta
    parts = {
        "qkv": sizes.mixed_width,
        "z": sizes.values_width,
        "b": sizes.num_value_heads,
        "a": sizes.num_value_heads,
    }
    recurrence = Recurrence(
        sizes=sizes,
        convolution=_convolution(f"{path}.conv1d.weight", shared, load),
        stored_decay=load.tensor(f"{path}.A_log", (sizes.num_value_heads,), keeps_dtype=True),
        decay_bias=load.tensor(f"{path}.dt_bias", (sizes.num_value_heads,)),
        kernels=shared.kernels,
    )
    return GatedDeltaLayer(
        inputs=load.fused([f"{path}.in_proj_{part}" for part in parts], E, parts.values()),
        recurrence=load.hold(recurrence),
        # Stored as it is in either layout, other than the model's other norms.
        norm=load.norm(f"{path}.norm", sizes.value_dim, shared.config.norm_eps),
        out=load.linear(f"{path}.out_proj", sizes.values_width, E),
    )


def _convolution(name: str, shared: Shared, load: WeightLoader) -> mx.array:
    """(C, kernel, 1), whichever way round it is stored."""
    channels, kernel = shared.config.delta.mixed_width, shared.config.delta.kernel
    if shared.names.is_published:
        return mx.contiguous(load.tensor(name, (channels, 1, kernel)).swapaxes(1, 2))
    return load.tensor(name, (channels, kernel, 1))


def _attention(path: str, shared: Shared, load: WeightLoader) -> GatedAttention:
    config = shared.config
    E, D, bias = config.hidden_size, config.head_dim, config.attention_bias
    sizes = (2 * config.num_heads * D, config.num_kv_heads * D, config.num_kv_heads * D)
    return GatedAttention(
        qkv=load.fused([f"{path}.{part}_proj" for part in "qkv"], E, sizes, bias),
        out=load.linear(f"{path}.o_proj", config.num_heads * D, E, bias),
        q_norm=_norm(f"{path}.q_norm", shared, load, D),
        k_norm=_norm(f"{path}.k_norm", shared, load, D),
        rope=shared.rope,
        axis_rope=AxisRope(config.num_rotated, config.rope.base, config.axis_sections),
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
    )


def _mlp(path: str, shared: Shared, load: WeightLoader) -> GatedMLP | SharedExpertMLP:
    config = shared.config
    if config.experts is None:
        return gated_mlp(path, config.hidden_size, config.intermediate_size, shared.activation, load)
    return mlp_with_experts(path, config.hidden_size, config.experts, shared.activation, load)
