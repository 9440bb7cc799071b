"""Draft heads of tiny Qwen3.5 models, as companions and as they ride along in a published checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Shapes = dict[str, tuple[int, ...]]


def companion_config(target: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """The companion of a target's config; `changes` go beside its language keys."""
    text = {**target.get("text_config", target), "mtp_num_hidden_layers": 1}
    return {"model_type": "qwen3_5_mtp", "block_size": 3, "text_config": text, **changes}


def head_shapes(config: Mapping[str, Any], prefix: str = "") -> Shapes:
    """Every tensor of a head; `mtp.` in front where it rides along, and its experts then come joined."""
    text = config.get("text_config", config)
    E, D = text["hidden_size"], text["head_dim"]
    queries, stored = text["num_attention_heads"] * D, text["num_key_value_heads"] * D
    layer: Shapes = {
        "input_layernorm": (E,),
        "post_attention_layernorm": (E,),
        "self_attn.q_proj": (2 * queries, E),
        "self_attn.k_proj": (stored, E),
        "self_attn.v_proj": (stored, E),
        "self_attn.o_proj": (E, queries),
        "self_attn.q_norm": (D,),
        "self_attn.k_norm": (D,),
    }
    own = {"fc": (E, 2 * E), "pre_fc_norm_embedding": (E,), "pre_fc_norm_hidden": (E,), "norm": (E,)}
    named = own | {f"layers.0.{name}": shape for name, shape in layer.items()}
    weights = {f"{name}.weight": shape for name, shape in named.items()}
    weights |= {
        f"layers.0.mlp.{name}": shape for name, shape in _feed_forward(text, joins_experts=prefix != "").items()
    }
    return {f"{prefix}{name}": shape for name, shape in weights.items()}


def _feed_forward(text: Mapping[str, Any], *, joins_experts: bool) -> Shapes:
    E = text["hidden_size"]
    if "num_experts" not in text:
        return _gated("", E, text["intermediate_size"])
    count, inner = text["num_experts"], text["moe_intermediate_size"]
    joined = {"experts.gate_up_proj": (count, 2 * inner, E), "experts.down_proj": (count, E, inner)}
    apart = {
        "switch_mlp.gate_proj.weight": (count, inner, E),
        "switch_mlp.up_proj.weight": (count, inner, E),
        "switch_mlp.down_proj.weight": (count, E, inner),
    }
    shared = _gated("shared_expert.", E, text["shared_expert_intermediate_size"])
    gates = {"gate.weight": (count, E), "shared_expert_gate.weight": (1, E)}
    return {**(joined if joins_experts else apart), **shared, **gates}


def _gated(prefix: str, width: int, inner: int) -> Shapes:
    return {
        f"{prefix}gate_proj.weight": (inner, width),
        f"{prefix}up_proj.weight": (inner, width),
        f"{prefix}down_proj.weight": (width, inner),
    }
