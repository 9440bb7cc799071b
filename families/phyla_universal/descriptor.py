"""The table: what each architecture's config means. A new plain architecture is a new row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Bias = Literal["always", "never", "attention_bias", "mlp_bias"]
"""Whether projections have biases: fixed, or the config key that says so."""

HeadDim = Literal["stated", "stated or quotient", "quotient"]
"""Where the head size comes from: its key, or hidden size over heads."""


@dataclass(frozen=True)
class Descriptor:
    """How one architecture differs from the plain pre-norm decoder."""

    qkv_bias: Bias = "never"
    out_bias: Bias = "never"
    mlp_bias: Bias = "never"
    head_dim: HeadDim = "stated or quotient"
    has_qk_norm: bool = False
    """Queries and keys are normed per head before they are rotated."""

    rope_base: float | None = None
    """For a config that names none."""

    num_kv_heads_is_optional: bool = False
    honours_layer_types: bool = False
    """`layer_types` and `sliding_window` make layers slide; elsewhere mlx-lm runs all layers full, and so do we."""


DESCRIPTORS: Mapping[str, Descriptor] = {
    "llama": Descriptor(
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias="mlp_bias",
        rope_base=10_000.0,
        num_kv_heads_is_optional=True,
        honours_layer_types=True,
    ),
    "qwen2": Descriptor(qkv_bias="always", head_dim="quotient", rope_base=1_000_000.0),
    "qwen3": Descriptor(head_dim="stated", has_qk_norm=True),
}

SAME_AS = {"mistral": "llama", "iquestcoder": "llama", "xverse": "llama"}
"""Types that are another one under a name of their own."""


def architecture_of(config: Mapping[str, Any]) -> str:
    """`model_type`, by the name the table has it under."""
    model_type = str(config.get("model_type"))
    return SAME_AS.get(model_type, model_type)


def descriptor_of(config: Mapping[str, Any]) -> Descriptor | None:
    """The row of a config's architecture, or None."""
    return DESCRIPTORS.get(architecture_of(config))
