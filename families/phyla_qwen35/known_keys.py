"""Which keys of a config mean something here, or nothing for running a model; others are worth a line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phyla.model.headers import text_section

from phyla_qwen35.config import ONLY

READ = frozenset(
    {
        *ONLY,
        "attention_bias",
        "full_attention_interval",
        "head_dim",
        "hidden_size",
        "intermediate_size",
        "layer_types",
        "linear_conv_kernel_dim",
        "linear_key_head_dim",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_value_head_dim",
        "max_position_embeddings",
        "model_type",
        "moe_intermediate_size",
        "norm_topk_prob",
        "num_attention_heads",
        "num_experts",
        "num_experts_per_tok",
        "num_hidden_layers",
        "num_key_value_heads",
        "partial_rotary_factor",
        "quantization",
        "quantization_config",
        "rms_norm_eps",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "shared_expert_intermediate_size",
        "tie_word_embeddings",
        "vocab_size",
    }
)

WITHOUT_EFFECT = frozenset(
    {
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "bos_token_id",
        "chunk_size_feed_forward",
        "dtype",
        "eos_token_id",
        "id2label",
        "initializer_range",
        "is_encoder_decoder",
        "label2id",
        "mtp_num_hidden_layers",
        "mtp_use_dedicated_embeddings",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "pad_token_id",
        "problem_type",
        "return_dict",
        "router_aux_loss_coef",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)
"""Training, bookkeeping of other libraries, special tokens, and the draft head's own."""


def unread_keys(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Language keys that nothing here knows, in order; null asks for nothing."""
    section = text_section(config) or config
    known = READ | WITHOUT_EFFECT
    return tuple(sorted(key for key, value in section.items() if key not in known and value is not None))
