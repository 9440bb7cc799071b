"""Tensor names and shapes by architecture, written from the published checkpoints and not from our own loaders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from phyla.errors import UnknownName
from phyla.testing.tiny.qwen35 import published_shapes
from phyla.testing.toy import ToyConfig, toy_shapes

Shapes = dict[str, tuple[int, ...]]


def tensor_shapes(config: Mapping[str, Any]) -> Shapes:
    """Every tensor a checkpoint with this config has.

    Raises:
        UnknownName: the `model_type` isn't known here.
    """
    writers: dict[str, Callable[[Mapping[str, Any]], Shapes]] = {
        "toy": lambda config: toy_shapes(ToyConfig.from_dict(config)),
        "llama": _llama_like,
        "mistral": _llama_like,
        "qwen2": _llama_like,
        "qwen3": _llama_like,
        "qwen3_5": published_shapes,
        "qwen3_5_text": published_shapes,
        "qwen3_5_moe": published_shapes,
        "qwen3_5_moe_text": published_shapes,
    }
    model_type = str(config.get("model_type"))
    if model_type not in writers:
        raise UnknownName("table of tensor shapes for model type", model_type, writers)
    return writers[model_type](config)


def _llama_like(config: Mapping[str, Any]) -> Shapes:
    E, V = config["hidden_size"], config["vocab_size"]
    shapes: Shapes = {"model.embed_tokens.weight": (V, E), "model.norm.weight": (E,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (V, E)
    for index in range(config["num_hidden_layers"]):
        own = _attention(config) | _mlp(config)
        own |= {"input_layernorm.weight": (E,), "post_attention_layernorm.weight": (E,)}
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in own.items()}
    return shapes


def _attention(config: Mapping[str, Any]) -> Shapes:
    E, H, K = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]
    D = config.get("head_dim") or E // H
    model_type = config["model_type"]
    qkv_bias = model_type == "qwen2" or config.get("attention_bias", False)
    out_bias = model_type != "qwen2" and config.get("attention_bias", False)
    shapes: Shapes = {}
    for part, num_heads in (("q", H), ("k", K), ("v", K)):
        shapes |= _linear(f"self_attn.{part}_proj", num_heads * D, E, qkv_bias)
    shapes |= _linear("self_attn.o_proj", E, H * D, out_bias)
    if model_type == "qwen3":
        shapes |= {"self_attn.q_norm.weight": (D,), "self_attn.k_norm.weight": (D,)}
    return shapes


def _mlp(config: Mapping[str, Any]) -> Shapes:
    E, intermediate, bias = config["hidden_size"], config["intermediate_size"], config.get("mlp_bias", False)
    return (
        _linear("mlp.gate_proj", intermediate, E, bias)
        | _linear("mlp.up_proj", intermediate, E, bias)
        | _linear("mlp.down_proj", E, intermediate, bias)
    )


def _linear(path: str, num_outputs: int, num_inputs: int, bias: bool) -> Shapes:
    shapes: Shapes = {f"{path}.weight": (num_outputs, num_inputs)}
    if bias:
        shapes[f"{path}.bias"] = (num_outputs,)
    return shapes
