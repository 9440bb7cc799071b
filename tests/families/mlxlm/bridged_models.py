"""Tiny models of architectures that only mlx-lm's own classes describe here."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from mlx.utils import tree_flatten

_BASE = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "rms_norm_eps": 1e-6,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}

CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "llama": {**_BASE, "attention_bias": False, "mlp_bias": False},
    "gemma2": {**_BASE, "query_pre_attn_scalar": 32, "tie_word_embeddings": True},
    "gemma3_text": {
        **_BASE,
        "num_hidden_layers": 4,
        "sliding_window": 16,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 32,
        "rope_local_base_freq": 10000.0,
        "rope_global_base_freq": 1e6,
        "tie_word_embeddings": True,
    },
    "mamba2": {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_heads": 4,
        "head_dim": 32,
        "intermediate_size": 128,
        "state_size": 16,
        "n_groups": 1,
        "conv_kernel": 4,
        "layer_norm_epsilon": 1e-5,
        "use_bias": False,
        "use_conv_bias": True,
        "tie_word_embeddings": True,
        "time_step_limit": [0.0, 100.0],
        "time_step_rank": 4,
        "vocab_size": 512,
    },
    "falcon_h1": {
        **_BASE,
        "mamba_d_ssm": 64,
        "mamba_n_heads": 2,
        "mamba_d_head": 32,
        "mamba_d_state": 16,
        "mamba_n_groups": 1,
        "mamba_d_conv": 4,
        "mamba_rms_norm": False,
        "mamba_norm_before_gate": False,
        "ssm_multipliers": [1.0, 1.0, 1.0, 1.0, 1.0],
        "mlp_multipliers": [1.0, 1.0],
    },
    "qwen3_moe": {
        **_BASE,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    },
}


def bridged_config(model_type: str, **changes: Any) -> dict[str, Any]:
    """`config.json` of a tiny model."""
    return {"model_type": model_type, **CONFIGS[model_type], **changes}


def bridged_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every tensor that mlx-lm's class has."""
    architecture = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    model = architecture.Model(architecture.ModelArgs.from_dict(dict(config)))
    return {name: tuple(one.shape) for name, one in tree_flatten(model.parameters())}
