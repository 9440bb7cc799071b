"""Llama architecture: GGUF's metadata and tensor names as a Hugging Face config and its names."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from phyla.errors import DamagedCheckpoint, UnsupportedModel

from phyla_gguf.block_types import GROUP_SIZE
from phyla_gguf.header import GGUFHeader

ARCHITECTURE = "llama"
ROPE_FACTORS = "rope_freqs.weight"

_LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_TOP_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER = re.compile(r"^blk\.(\d+)\.(\w+)\.(weight|bias)$")


def config_of(header: GGUFHeader, owner: str) -> dict[str, Any]:
    """The config that the metadata amounts to.

    Raises:
        UnsupportedModel: another architecture, experts, or a rope that isn't known; names what.
        DamagedCheckpoint: a value that a llama needs is missing or of the wrong kind.
    """
    metadata = header.metadata
    architecture = metadata.get("general.architecture")
    if architecture != ARCHITECTURE:
        raise UnsupportedModel(
            f"{owner} is of GGUF architecture {architecture!r:.60}; '{ARCHITECTURE}' is read. Use its safetensors form."
        )
    if metadata.get("llama.expert_count"):
        raise UnsupportedModel(f"{owner} has experts, which GGUF files are not read with. Use its safetensors form.")
    if metadata.get("split.count", 0) not in (0, 1):
        raise UnsupportedModel(f"{owner} is one of {metadata['split.count']} parts. Merge them into one file first.")
    read = _Values(metadata, owner)
    heads, hidden = read.count("llama.attention.head_count"), read.count("llama.embedding_length")
    tokens = metadata.get("tokenizer.ggml.tokens")
    vocabulary = len(tokens) if isinstance(tokens, list) else read.count("llama.vocab_size")
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": read.count("llama.feed_forward_length"),
        "num_hidden_layers": read.count("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": read.count("llama.attention.head_count_kv", heads),
        "head_dim": read.count("llama.attention.key_length", hidden // heads),
        "vocab_size": vocabulary,
        "max_position_embeddings": read.count("llama.context_length"),
        "rms_norm_eps": read.real("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": read.real("llama.rope.freq_base", 10000.0),
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in header.tensors,
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "rope_scaling": _rope_scaling(metadata, read, owner),
    }
    config.update(_token_ids(metadata))
    if quantization := _quantization(header):
        config["quantization"] = quantization
    return config


def hugging_face_name(name: str, owner: str) -> str:
    """`blk.3.attn_q.weight` as `model.layers.3.self_attn.q_proj.weight`.

    Raises:
        UnsupportedModel: no llama has a tensor of that name.
    """
    match = _LAYER.match(name)
    if match and match[2] in _LAYER_NAMES:
        return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.{match[3]}"
    stem, _, suffix = name.rpartition(".")
    if stem in _TOP_NAMES and suffix in ("weight", "bias"):
        return f"{_TOP_NAMES[stem]}.{suffix}"
    raise UnsupportedModel(f"{owner} has a tensor {name[:120]!r} that a llama doesn't. Use its safetensors form.")


def num_permuted_heads(name: str, config: Mapping[str, Any]) -> int | None:
    """Heads of a tensor whose rows GGUF reorders for its own kind of rope, or None."""
    if ".attn_q." in name:
        return int(config["num_attention_heads"])
    return int(config["num_key_value_heads"]) if ".attn_k." in name else None


def original_rows(rows: NDArray[np.generic], num_heads: int) -> NDArray[np.generic]:
    """Undo the reordering: GGUF has dims i and i + D/2 of each head side by side, Hugging Face half a head apart.

    Args:
        rows: (heads * D, ...) of a query or key projection.
        num_heads: heads that the rows divide into.
    """
    pairs = rows.reshape(num_heads, -1, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def with_rope_factors(config: dict[str, Any], factors: Sequence[float], owner: str) -> dict[str, Any]:
    """The config with the llama 3 scaling that the stored frequency factors came from.

    Raises:
        UnsupportedModel: they don't come from it.
    """
    scaling = {"rope_type": "llama3", "factor": float(max(factors)), **_LLAMA3_ROPE}
    expected = _llama3_factors(scaling, config["rope_theta"], config["head_dim"])
    if len(expected) != len(factors) or not np.allclose(expected, factors, rtol=1e-4):
        raise UnsupportedModel(f"{owner} brings rope factors that aren't llama 3's. Use its safetensors form.")
    return {**config, "rope_scaling": scaling}


class _Values:
    """Typed access to metadata."""

    def __init__(self, metadata: Mapping[str, Any], owner: str) -> None:
        self._metadata = metadata
        self._owner = owner

    def count(self, key: str, default: int | None = None) -> int:
        value = self._metadata.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
            raise DamagedCheckpoint(f"{self._owner} has {value!r:.40} for {key}; a positive number belongs there.")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        value = self._metadata.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise DamagedCheckpoint(f"{self._owner} has {value!r:.40} for {key}; a positive number belongs there.")
        # The shortest decimal of the stored float32: 1e-05, as the original config had it.
        return float(str(np.float32(value)))


def _token_ids(metadata: Mapping[str, Any]) -> dict[str, int]:
    kinds = ("bos", "eos")
    ids = {kind: metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in kinds}
    return {f"{kind}_token_id": token_id for kind, token_id in ids.items() if isinstance(token_id, int)}


def _rope_scaling(metadata: Mapping[str, Any], read: _Values, owner: str) -> dict[str, Any] | None:
    kind = metadata.get("llama.rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": read.real("llama.rope.scaling.factor")}
    if kind == "yarn":
        original = read.count("llama.rope.scaling.original_context_length")
        factor = read.real("llama.rope.scaling.factor")
        return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    raise UnsupportedModel(f"{owner} scales rope by {kind!r:.40}; none, linear and yarn are read.")


def _quantization(header: GGUFHeader) -> dict[str, Any]:
    """MLX's section: the commonest width for all, and each module that has another."""
    bits = {tensor.name: tensor.block_type.bits for tensor in header.tensors.values() if tensor.block_type.bits}
    if not bits:
        return {}
    (common, _), *_ = Counter(bits.values()).most_common(1)
    section: dict[str, Any] = {"group_size": GROUP_SIZE, "bits": common, "mode": "affine"}
    for name, width in bits.items():
        if width != common:
            module = hugging_face_name(name, "the file").removesuffix(".weight")
            section[module] = {"group_size": GROUP_SIZE, "bits": width, "mode": "affine"}
    return section


def _llama3_factors(scaling: Mapping[str, Any], theta: float, head_dim: int) -> NDArray[np.float64]:
    """What each frequency is divided by.

    Source:
        Llama 3.1 release: long wavelengths by `factor`, short ones by 1, smooth in between.
    """
    wavelengths = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    turns = scaling["original_max_position_embeddings"] / wavelengths
    low, high, factor = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["factor"]
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    factors: NDArray[np.float64] = 1 / ((1 - smooth) / factor + smooth)
    return factors
