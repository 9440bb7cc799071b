"""Tiny checkpoints: a whole model folder with seeded random weights, made in a fraction of a second."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phyla.testing.tiny.configs import tiny_config
from phyla.testing.tiny.shapes import tensor_shapes

__all__ = ["tensor_shapes", "tiny_checkpoint", "tiny_config"]

Shapes = Mapping[str, tuple[int, ...]]


def tiny_checkpoint(
    folder: Path,
    config: Mapping[str, Any],
    seed: int = 0,
    tokenizer: bool = True,
    *,
    shapes: Shapes | None = None,
    dtype: str = "float32",
    num_shards: int = 1,
) -> Path:
    """Write a model folder and return it.

    Args:
        folder: made if it isn't there.
        config: `config.json`. A `quantization` section is honoured: the weights come out in that form.
        seed: of the weights.
        tokenizer: also write a small byte-level BPE tokenizer and a chat template, and give a config that names no
            end-of-sequence id the tokenizer's.
        shapes: tensor names and shapes; needed for a `model_type` that `tensor_shapes` doesn't know.
        dtype: of the unquantised tensors.
        num_shards: above one writes an index and that many files.
    """
    from phyla.testing.tiny.tensors import write_tensors

    folder.mkdir(parents=True, exist_ok=True)
    written = dict(config)
    if tokenizer:
        from phyla.testing.tiny.tokenizer import SPECIAL_TOKENS, write_tokenizer

        write_tokenizer(folder, vocab_size=int(config.get("vocab_size", 512)))
        written.setdefault("eos_token_id", SPECIAL_TOKENS.index("<|im_end|>"))
        written.setdefault("bos_token_id", SPECIAL_TOKENS.index("<|endoftext|>"))
        written.setdefault("pad_token_id", SPECIAL_TOKENS.index("<|endoftext|>"))
        _write_json(folder / "generation_config.json", {"eos_token_id": written["eos_token_id"]})
    _write_json(folder / "config.json", written)
    write_tensors(folder, written, tensor_shapes(written) if shapes is None else shapes, seed, dtype, num_shards)
    return folder


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
