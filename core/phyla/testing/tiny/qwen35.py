"""Tensors and configs of tiny Qwen3.5 models, in the published layout and in the one converters write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Shapes = dict[str, tuple[int, ...]]

_TEXT: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 512,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 4096,
    "mtp_num_hidden_layers": 1,
    "eos_token_id": None,
    "rope_parameters": {
        "rope_type": "default",
        "type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [3, 3, 2],
        "mrope_interleaved": True,
    },
}

_EXPERTS: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "norm_topk_prob": True,
}

_MEDIA = {"image_token_id": 500, "video_token_id": 501, "vision_start_token_id": 502, "vision_end_token_id": 503}

_VISION = {
    "depth": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_heads": 2,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 128,
    "num_position_embeddings": 64,
}


def qwen35_config(with_experts: bool = False, **changes: Any) -> dict[str, Any]:
    """A nested config; `changes` go to its language keys."""
    model_type = "qwen3_5_moe" if with_experts else "qwen3_5"
    text = {"model_type": f"{model_type}_text", **_TEXT, **(_EXPERTS if with_experts else {}), **changes}
    return {"model_type": model_type, **_MEDIA, "text_config": text, "vision_config": dict(_VISION)}


def published_shapes(config: Mapping[str, Any]) -> Shapes:
    """As the models are published: language tensors only, neither vision tower nor draft head."""
    text = config.get("text_config", config)
    body = "model.language_model." if "text_config" in config else "model."
    shapes = _decoder(text, body, (1, text["linear_conv_kernel_dim"]), fuses_experts=True)
    return shapes if text["tie_word_embeddings"] else shapes | {"lm_head.weight": _embedding(text)}


def converted_shapes(config: Mapping[str, Any]) -> Shapes:
    """As mlx-lm's conversion writes them."""
    text = config.get("text_config", config)
    shapes = _decoder(text, "language_model.model.", (text["linear_conv_kernel_dim"], 1), fuses_experts=False)
    return shapes if text["tie_word_embeddings"] else shapes | {"language_model.lm_head.weight": _embedding(text)}


def differences_to_one(shapes: Mapping[str, tuple[int, ...]]) -> frozenset[str]:
    """Norms that the published layout stores as their difference to one; none in the converted one."""
    convolutions = [shape for name, shape in shapes.items() if name.endswith("linear_attn.conv1d.weight")]
    if not any(shape[-1] != 1 for shape in convolutions):
        return frozenset()
    return frozenset(
        name for name in shapes if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight")
    )


def _decoder(text: Mapping[str, Any], body: str, conv: tuple[int, int], *, fuses_experts: bool) -> Shapes:
    E = text["hidden_size"]
    shapes: Shapes = {f"{body}embed_tokens.weight": _embedding(text), f"{body}norm.weight": (E,)}
    for index in range(text["num_hidden_layers"]):
        is_full = (index + 1) % text["full_attention_interval"] == 0
        own = _attention(text) if is_full else _delta(text, conv)
        own |= _experts(text, fuses_experts) if text.get("num_experts") else _mlp("mlp", E, text["intermediate_size"])
        own |= {"input_layernorm.weight": (E,), "post_attention_layernorm.weight": (E,)}
        shapes |= {f"{body}layers.{index}.{name}": shape for name, shape in own.items()}
    return shapes


def _embedding(text: Mapping[str, Any]) -> tuple[int, int]:
    return (text["vocab_size"], text["hidden_size"])


def _delta(text: Mapping[str, Any], conv: tuple[int, int]) -> Shapes:
    E, num_values, value_dim = text["hidden_size"], text["linear_num_value_heads"], text["linear_value_head_dim"]
    values = num_values * value_dim
    channels = 2 * text["linear_num_key_heads"] * text["linear_key_head_dim"] + values
    return {
        "linear_attn.in_proj_qkv.weight": (channels, E),
        "linear_attn.in_proj_z.weight": (values, E),
        "linear_attn.in_proj_b.weight": (num_values, E),
        "linear_attn.in_proj_a.weight": (num_values, E),
        "linear_attn.conv1d.weight": (channels, *conv),
        "linear_attn.A_log": (num_values,),
        "linear_attn.dt_bias": (num_values,),
        "linear_attn.norm.weight": (value_dim,),
        "linear_attn.out_proj.weight": (E, values),
    }


def _attention(text: Mapping[str, Any]) -> Shapes:
    E, D = text["hidden_size"], text["head_dim"]
    queries, stored = text["num_attention_heads"] * D, text["num_key_value_heads"] * D
    shapes: Shapes = {
        "self_attn.q_proj.weight": (2 * queries, E),
        "self_attn.k_proj.weight": (stored, E),
        "self_attn.v_proj.weight": (stored, E),
        "self_attn.o_proj.weight": (E, queries),
        "self_attn.q_norm.weight": (D,),
        "self_attn.k_norm.weight": (D,),
    }
    if text["attention_bias"]:
        shapes |= {name.replace(".weight", ".bias"): shape[:1] for name, shape in shapes.items() if "_proj" in name}
    return shapes


def _experts(text: Mapping[str, Any], fused: bool) -> Shapes:
    E, count, inner = text["hidden_size"], text["num_experts"], text["moe_intermediate_size"]
    shapes: Shapes = {"mlp.gate.weight": (count, E), "mlp.shared_expert_gate.weight": (1, E)}
    shapes |= _mlp("mlp.shared_expert", E, text["shared_expert_intermediate_size"])
    if fused:
        return shapes | {"mlp.experts.gate_up_proj": (count, 2 * inner, E), "mlp.experts.down_proj": (count, E, inner)}
    return shapes | {
        "mlp.switch_mlp.gate_proj.weight": (count, inner, E),
        "mlp.switch_mlp.up_proj.weight": (count, inner, E),
        "mlp.switch_mlp.down_proj.weight": (count, E, inner),
    }


def _mlp(path: str, width: int, inner: int) -> Shapes:
    return {
        f"{path}.gate_proj.weight": (inner, width),
        f"{path}.up_proj.weight": (inner, width),
        f"{path}.down_proj.weight": (width, inner),
    }
