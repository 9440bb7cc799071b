"""Writing seeded tensors as safetensors, quantised where the config says so."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx

from phyla.model.quantization import QuantSection, parse_quant_section
from phyla.testing.tiny.qwen35 import differences_to_one
from phyla.testing.weights import random_tensors

UNQUANTISED_SUFFIXES = ("norm.weight", "conv1d.weight")


def write_tensors(
    folder: Path,
    config: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    seed: int,
    dtype: str,
    num_shards: int,
) -> None:
    """Write `model.safetensors`, or shards and their index."""
    section = parse_quant_section(config)
    tensors: dict[str, mx.array] = {}
    differences = differences_to_one(shapes)
    for name, tensor in random_tensors(shapes, seed).items():
        held = tensor - 1 if name in differences else tensor
        tensors |= _stored(name, held.astype(getattr(mx, dtype)), section)
    if num_shards == 1:
        mx.save_safetensors(str(folder / "model.safetensors"), tensors, metadata={"format": "mlx"})
        return
    names = sorted(tensors)
    weight_map: dict[str, str] = {}
    for shard in range(num_shards):
        own = names[shard::num_shards]
        file_name = f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"
        mx.save_safetensors(str(folder / file_name), {name: tensors[name] for name in own}, metadata={"format": "mlx"})
        weight_map |= dict.fromkeys(own, file_name)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _stored(name: str, tensor: mx.array, section: QuantSection) -> dict[str, mx.array]:
    path = name.removesuffix(".weight")
    form = section.form_of(path)
    # Three axes: the matrices of several experts.
    is_matrix = tensor.ndim in (2, 3) and name.endswith(".weight") and not name.endswith(UNQUANTISED_SUFFIXES)
    if form is None or not is_matrix:
        return {name: tensor}
    packed, scales, *biases = mx.quantize(tensor, group_size=form.group_size, bits=form.bits, mode=form.mode)
    stored = {name: packed, f"{path}.scales": scales}
    return stored | {f"{path}.biases": biases[0]} if biases else stored
