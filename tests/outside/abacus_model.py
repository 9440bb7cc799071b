"""A tiny abacus checkpoint, and the same decoder once more in plain numpy: the oracle."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

CONFIG: Mapping[str, Any] = {
    "model_type": "abacus",
    "num_layers": 3,
    "hidden_size": 64,
    "num_heads": 4,
    "inner_size": 96,
    "vocab_size": 512,
    "context_limit": 256,
}


def shapes() -> dict[str, tuple[int, ...]]:
    """Tensor names and shapes."""
    E, inner = CONFIG["hidden_size"], CONFIG["inner_size"]
    made: dict[str, tuple[int, ...]] = {"embed.weight": (CONFIG["vocab_size"], E), "norm.weight": (E,)}
    for index in range(CONFIG["num_layers"]):
        path = f"blocks.{index}"
        made |= {f"{path}.{part}.weight": (E, E) for part in "qkvo"}
        made |= {f"{path}.{part}.weight": (inner, E) for part in ("gate", "up")}
        made |= {f"{path}.down.weight": (E, inner), f"{path}.norm.weight": (E,)}
    return made


def numpy_logits(folder: Path, tokens: list[int]) -> np.ndarray:
    """(L, V) logits of the whole prompt, in float64."""
    weights = {name: array.astype(np.float64) for name, array in load_file(folder / "model.safetensors").items()}
    hidden = weights["embed.weight"][tokens]
    for index in range(CONFIG["num_layers"]):
        own = {name.split(".")[2]: array for name, array in weights.items() if name.startswith(f"blocks.{index}.")}
        normed = _norm(hidden, own["norm"])
        gate = normed @ own["gate"].T
        mlp = (gate / (1 + np.exp(-gate)) * (normed @ own["up"].T)) @ own["down"].T
        hidden = hidden + _attention(normed, own) + mlp
    logits: np.ndarray = _norm(hidden, weights["norm.weight"]) @ weights["embed.weight"].T
    return logits


def _attention(normed: np.ndarray, own: Mapping[str, np.ndarray]) -> np.ndarray:
    L, E = normed.shape
    H = CONFIG["num_heads"]
    queries, keys, values = ((normed @ own[part].T).reshape(L, H, E // H).transpose(1, 0, 2) for part in "qkv")
    scores = _rotated(queries) @ _rotated(keys).transpose(0, 2, 1) / np.sqrt(E // H)
    scores = np.where(np.tril(np.ones((L, L), dtype=bool)), scores, -np.inf)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    attended: np.ndarray = (shares @ values).transpose(1, 0, 2).reshape(L, E) @ own["o"].T
    return attended


def _rotated(heads: np.ndarray) -> np.ndarray:
    _, L, D = heads.shape
    angles = np.arange(L)[:, None] / 10000.0 ** (np.arange(0, D, 2) / D)
    first, second = heads[..., : D // 2], heads[..., D // 2 :]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    normed: np.ndarray = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6) * weight
    return normed
