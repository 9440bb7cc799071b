"""Checkpoints of seeded random weights in a known model's shape: a speed depends on shapes, not on what was learnt."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phyla.errors import UnknownName, UsageError

PREFIX = "random:"
GROUP_SIZE = 64
BITS = (4, 8)
TOKENIZER_VOCABULARY = 512
"""The tokenizer beside the weights knows so many ids; prompts are drawn from them."""

_LLAMA = {
    "model_type": "llama",
    "rms_norm_eps": 1e-5,
    "rope_theta": 5e5,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "max_position_embeddings": 32768,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

GEOMETRIES: Mapping[str, dict[str, Any]] = {
    "tiny": _LLAMA
    | {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": 512}
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64},
    # The layers of a 1B and next to no numbers: what is left is what the host does to build and start a step.
    "host-bound": _LLAMA
    | {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 16, "vocab_size": 2048}
    | {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32},
    "smollm2-135m": _LLAMA
    | {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "vocab_size": 49152}
    | {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "tie_word_embeddings": True},
    "llama-0.5b": _LLAMA
    | {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "vocab_size": 49152}
    | {"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64},
    "llama-1b": _LLAMA
    | {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "vocab_size": 128256}
    | {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64},
    "llama-8b": _LLAMA
    | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "vocab_size": 128256}
    | {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128},
    "qwen35-0.8b": {
        "model_type": "qwen3_5",
        "tie_word_embeddings": True,
        "text_config": {
            "model_type": "qwen3_5_text",
            "hidden_size": 1024,
            "intermediate_size": 3584,
            "num_hidden_layers": 24,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "vocab_size": 151936,
            "linear_num_value_heads": 16,
            "linear_num_key_heads": 16,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_conv_kernel_dim": 4,
            "full_attention_interval": 4,
            "tie_word_embeddings": True,
            "rms_norm_eps": 1e-6,
            "attention_bias": False,
            "max_position_embeddings": 32768,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
        },
    },
}

Adjust = Callable[[str, Any], Any]


@dataclass(frozen=True)
class RandomModel:
    """A geometry, and how many bits its matrices take."""

    geometry: str
    bits: int | None = None
    """None: bfloat16."""

    @property
    def name(self) -> str:
        return self.geometry if self.bits is None else f"{self.geometry}-{self.bits}bit"

    @classmethod
    def parse(cls, reference: str) -> RandomModel:
        """Read `random:llama-8b` or `random:llama-8b@4`.

        Raises:
            UnknownName: no such geometry.
            UsageError: bits that no matrix can have.
        """
        geometry, at, bits = reference.removeprefix(PREFIX).partition("@")
        if geometry not in GEOMETRIES:
            raise UnknownName("geometry of random weights", geometry, GEOMETRIES)
        if at and bits not in map(str, BITS):
            raise UsageError(f"'{reference}': random weights come in bfloat16, @4 or @8 bits.")
        return cls(geometry, int(bits) if at else None)

    def write(self, folder: Path) -> Path:
        """Write the checkpoint to `folder/NAME`; one that is there already is used again.

        Raises:
            UsageError: the folder can't be written.
        """
        made = folder / self.name
        if (made / "config.json").is_file():
            return made
        try:
            made.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"Random weights can't be written to {folder}: {error}.") from error
        write_random_folder(made, GEOMETRIES[self.geometry], self.bits)
        return made


def is_random(reference: str | None) -> bool:
    """Whether the reference names a geometry and not a model."""
    return reference is not None and reference.startswith(PREFIX)


def write_random_folder(
    folder: Path, config: Mapping[str, Any], bits: int | None, adjust: Adjust = lambda name, weights: weights
) -> None:
    """Write seeded random bfloat16 weights, drawn by mlx on its device: numpy would take minutes for 8B.

    Args:
        folder: exists.
        config: what config.json will say.
        bits: quantise matrices to so many, in groups of 64; None doesn't.
        adjust: from a tensor's name and its random values to what is written.
    """
    import mlx.core as mx

    from phyla.testing.tiny.qwen35 import converted_shapes
    from phyla.testing.tiny.shapes import tensor_shapes
    from phyla.testing.tiny.tokenizer import write_tokenizer

    shapes = converted_shapes(config) if "text_config" in config else tensor_shapes(config)
    tensors: dict[str, mx.array] = {}
    for seed, (tensor, shape) in enumerate(shapes.items()):
        drawn = mx.random.normal(shape, key=mx.random.key(seed)) * 0.02
        array = (drawn + 1 if len(shape) == 1 else drawn).astype(mx.bfloat16)
        if tensor.endswith("A_log"):
            array = mx.abs(drawn).astype(mx.float32)
        array = adjust(tensor, array)
        if bits and len(shape) == 2:
            path = tensor.removesuffix(".weight")
            packed = mx.quantize(array, group_size=GROUP_SIZE, bits=bits)
            tensors |= {f"{path}.{part}": one for part, one in zip(("weight", "scales", "biases"), packed, strict=True)}
        else:
            tensors[tensor] = array
        mx.eval(tensors)
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, metadata={"format": "mlx"})
    write_tokenizer(folder, TOKENIZER_VOCABULARY)
    section = {"quantization": {"group_size": GROUP_SIZE, "bits": bits}} if bits else {}
    # Last: a folder with a config is a whole checkpoint.
    (folder / "config.json").write_text(json.dumps({**config, **section}))
