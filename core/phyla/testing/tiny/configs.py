"""Configs of tiny models in which every branch of an architecture is taken."""

from __future__ import annotations

from typing import Any

from phyla.errors import UnknownName

_BASE: dict[str, Any] = {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "intermediate_size": 192,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-6,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}

_OWN: dict[str, dict[str, Any]] = {
    "llama": {"head_dim": 64, "attention_bias": False, "mlp_bias": False},
    "qwen2": {"rope_theta": 1e6},
    "qwen3": {"head_dim": 64, "rope_theta": 1e6, "tie_word_embeddings": True},
}


def tiny_config(model_type: str, **changes: Any) -> dict[str, Any]:
    """A `config.json` of that type with every default written out: libraries disagree on them.

    Raises:
        UnknownName: no tiny config of that type is known here.
    """
    if model_type not in _OWN:
        raise UnknownName("tiny config", model_type, _OWN)
    return {"model_type": model_type, **_BASE, **_OWN[model_type], **changes}
