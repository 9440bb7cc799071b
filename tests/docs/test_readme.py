"""The README is run: its example, and its plugin, installed in files and compared with its formulas."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from phyla.testing.tiny import tiny_checkpoint
from phyla.testing.weights import random_tensors

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
CONFIG = {
    "model_type": "parallel",
    "num_heads": 4,
    "hidden_size": 64,
    "num_layers": 2,
    "vocab_size": 512,
    "context": 256,
    # No token ends an answer, so that all of them can be compared.
    "eos_token_id": 511,
}
PROMPT = [5, 9, 300, 7, 7, 42]
NUM_TOKENS = 8

GENERATE = """
import sys
import phyla

with phyla.load(sys.argv[1]) as model:
    print(model.plan.family.name, list(model.generate([int(one) for one in sys.argv[2:]], max_tokens=8).token_ids))
"""


def block_after(marker: str, language: str) -> str:
    found = re.search(rf"{re.escape(marker)}.*?```{language}\n(.*?)```", README, flags=re.DOTALL)
    assert found is not None, f"the README has no {language} block after {marker!r}"
    return found[1]


def shapes() -> dict[str, tuple[int, ...]]:
    E, V = CONFIG["hidden_size"], CONFIG["vocab_size"]
    matrices = {"q": (E, E), "k": (E, E), "v": (E, E), "o": (E, E), "up": (4 * E, E), "down": (E, 4 * E)}
    layers = {
        f"layers.{index}.{name}.weight": shape
        for index in range(CONFIG["num_layers"])
        for name, shape in (*matrices.items(), ("norm", (E,)))
    }
    return {"embed.weight": (V, E), "norm.weight": (E,), **layers}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plugin's package beside the metadata that an installation leaves."""
    site = tmp_path_factory.mktemp("site")
    package = site / "phyla_parallel"
    package.mkdir()
    for name in ("__init__.py", "model.py"):
        (package / name).write_text(block_after(f"`phyla_parallel/{name}`", "python"))
    declared = block_after("`pyproject.toml`", "toml").replace('"', "").splitlines()[1]
    metadata = site / "phyla_parallel-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: phyla-parallel\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[phyla]\n{declared}\n")
    return site


def test_the_python_example_runs_with_the_starter() -> None:
    example = block_after("From Python:", "python")
    finished = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=False, timeout=280)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.startswith("The capital of France is Paris.\n")


def test_the_plugin_generates_what_its_formulas_say(installed: Path, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "model", CONFIG, shapes=shapes())
    path = os.pathsep.join([str(installed), *(entry for entry in sys.path if entry)])
    finished = subprocess.run(
        [sys.executable, "-c", GENERATE, str(folder), *map(str, PROMPT)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert finished.returncode == 0, finished.stderr
    name, tokens = finished.stdout.strip().split(" ", 1)
    assert name == "parallel"
    assert json.loads(tokens) == greedy_by_formula()


def test_the_plugin_is_about_forty_statements() -> None:
    files = [block_after(f"`phyla_parallel/{name}`", "python") for name in ("__init__.py", "model.py")]
    statements = [node for text in files for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]
    assert len(statements) < 55


def greedy_by_formula() -> list[int]:
    weights = {name: np.array(value, dtype=np.float64) for name, value in random_tensors(shapes()).items()}
    tokens = list(PROMPT)
    for _ in range(NUM_TOKENS):
        tokens.append(int(np.argmax(logits_of(tokens, weights))))
    return tokens[len(PROMPT) :]


def logits_of(tokens: list[int], weights: dict[str, np.ndarray]) -> np.ndarray:
    hidden = weights["embed.weight"][tokens]
    for index in range(CONFIG["num_layers"]):
        own = {name: weights[f"layers.{index}.{name}.weight"] for name in ("q", "k", "v", "o", "up", "down", "norm")}
        normed = rms_norm(hidden, own["norm"])
        queries, keys, values = (split(normed @ own[name].T) for name in "qkv")
        scores = rotated(queries) @ rotated(keys).swapaxes(-1, -2) / queries.shape[-1] ** 0.5
        scores = np.where(np.tri(len(tokens), dtype=bool), scores, -np.inf)
        seen = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = (seen / seen.sum(axis=-1, keepdims=True)) @ values
        attended = mixed.transpose(1, 0, 2).reshape(len(tokens), -1) @ own["o"].T
        hidden = hidden + attended + np.maximum(normed @ own["up"].T, 0) @ own["down"].T
    return rms_norm(hidden[-1], weights["norm.weight"]) @ weights["embed.weight"].T


def rms_norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6) * weight


def split(x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), CONFIG["num_heads"], -1).transpose(1, 0, 2)


def rotated(heads: np.ndarray) -> np.ndarray:
    half = heads.shape[-1] // 2
    angles = np.arange(heads.shape[1])[:, None] * 10000.0 ** (-np.arange(half) / half)
    left, right = heads[..., :half], heads[..., half:]
    turned = [left * np.cos(angles) - right * np.sin(angles), left * np.sin(angles) + right * np.cos(angles)]
    return np.concatenate(turned, axis=-1)
