"""Tiny GGUF files, written by the `gguf` package, and their export to float32 safetensors for oracles."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import mlx.core as mx
import numpy as np
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray
from phyla.checkpoint import Checkpoint
from phyla.tokenizer.fast import FastTokenizer

from tests.core.tokenizer import small_tokenizers


@dataclass(frozen=True)
class Sizes:
    """Of a llama."""

    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    intermediate: int = 96
    layers: int = 2


TINY = Sizes()
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def write_tiny(path: Path, kind: Kind = Kind.Q4_1, *, tied: bool = True, sizes: Sizes = TINY, **changes: Any) -> Path:
    """A llama with every matrix stored as `kind`; `changes` add or replace metadata, None removes."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in {**_metadata(sizes), **changes}.items():
        _add(writer, key.replace("__", "."), value)
    for name, array in tiny_tensors(tied, sizes).items():
        matrix_kind = kind if array.ndim == 2 else Kind.F32
        if matrix_kind in (Kind.F32, Kind.F16):
            writer.add_tensor(name, array.astype(np.float32 if matrix_kind == Kind.F32 else np.float16))
        else:
            writer.add_tensor(name, gguf.quantize(array, matrix_kind), raw_dtype=matrix_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tiny_tensors(tied: bool = True, sizes: Sizes = TINY) -> dict[str, NDArray[np.float32]]:
    """Seeded weights by GGUF name, query and key rows as GGUF orders them."""
    random = np.random.default_rng(0)
    vocabulary = len(_tokens())

    def matrix(rows: int, columns: int) -> NDArray[np.float32]:
        return (random.standard_normal((rows, columns)) * 0.08).astype(np.float32)

    tensors = {
        "token_embd.weight": matrix(vocabulary, sizes.hidden),
        "output_norm.weight": np.ones(sizes.hidden, np.float32),
    }
    if not tied:
        tensors["output.weight"] = matrix(vocabulary, sizes.hidden)
    for layer in range(sizes.layers):
        rows = {
            "attn_q": sizes.heads * sizes.head_dim,
            "attn_k": sizes.kv_heads * sizes.head_dim,
            "attn_v": sizes.kv_heads * sizes.head_dim,
        }
        shapes = {name: (count, sizes.hidden) for name, count in rows.items()}
        shapes |= {
            "attn_output": (sizes.hidden, sizes.heads * sizes.head_dim),
            "ffn_down": (sizes.hidden, sizes.intermediate),
        }
        shapes |= {"ffn_gate": (sizes.intermediate, sizes.hidden), "ffn_up": (sizes.intermediate, sizes.hidden)}
        tensors |= {f"blk.{layer}.{name}.weight": matrix(*shape) for name, shape in shapes.items()}
        for norm in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{layer}.{norm}.weight"] = random.uniform(0.5, 1.5, sizes.hidden).astype(np.float32)
    return tensors


def export_float32(checkpoint: Checkpoint, folder: Path) -> Path:
    """The same model as an unquantised float32 folder that other libraries read; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    section: Mapping[str, Any] = checkpoint.config.get("quantization", {})
    arrays = checkpoint.load(checkpoint.tensor_infos())
    dense = {name: _dense(arrays, name, section) for name in arrays if not name.endswith((".scales", ".biases"))}
    mx.save_safetensors(str(folder / "model.safetensors"), dense, {"format": "mlx"})
    config = {name: value for name, value in checkpoint.config.items() if name != "quantization"}
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "float32"}))
    (folder / "generation_config.json").write_text(json.dumps(dict(checkpoint.generation_config)))
    tokenizer = checkpoint.tokenizer()
    assert isinstance(tokenizer, FastTokenizer)
    (folder / "tokenizer.json").write_text(tokenizer.definition)
    settings = {**tokenizer.named_tokens, "chat_template": checkpoint.chat_template}
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def _dense(arrays: Mapping[str, mx.array], name: str, section: Mapping[str, Any]) -> mx.array:
    module = name.removesuffix(".weight")
    if f"{module}.scales" not in arrays:
        return arrays[name].astype(mx.float32)
    own = {**section, **section.get(module, {})}
    # float32 before multiplying: float16 arithmetic would round what the file holds exactly.
    scales, biases = (arrays[f"{module}.{plane}"].astype(mx.float32) for plane in ("scales", "biases"))
    return mx.dequantize(arrays[name], scales, biases, group_size=own["group_size"], bits=own["bits"])


def _metadata(sizes: Sizes) -> dict[str, Any]:
    tokens = _tokens()
    controls = set(small_tokenizers.SPECIAL)
    model = json.loads(small_tokenizers.byte_level().to_str())["model"]
    return {
        "llama.context_length": 512,
        "llama.embedding_length": sizes.hidden,
        "llama.feed_forward_length": sizes.intermediate,
        "llama.block_count": sizes.layers,
        "llama.attention.head_count": sizes.heads,
        "llama.attention.head_count_kv": sizes.kv_heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if t in controls else 4 if t in small_tokenizers.MARKUP else 1 for t in tokens],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "tokenizer.ggml.bos_token_id": tokens.index("<s>"),
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.ggml.eot_token_id": tokens.index("<|endoftext|>"),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }


def _tokens() -> list[str]:
    vocabulary = small_tokenizers.byte_level().get_vocab(with_added_tokens=True)
    return sorted(vocabulary, key=lambda token: vocabulary[token])


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif value is not None:
        writer.add_array(key, value)
