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
    """Every tensor of a head; `mtp.` in front where it rides along."""
    text = config.get("text_config", config)
    E, D, inner = text["hidden_size"], text["head_dim"], text["intermediate_size"]
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
        "mlp.gate_proj": (inner, E),
        "mlp.up_proj": (inner, E),
        "mlp.down_proj": (E, inner),
    }
    own = {"fc": (E, 2 * E), "pre_fc_norm_embedding": (E,), "pre_fc_norm_hidden": (E,), "norm": (E,)}
    named = own | {f"layers.0.{name}": shape for name, shape in layer.items()}
    return {f"{prefix}{name}.weight": shape for name, shape in named.items()}
