"""Makes `goldens.safetensors`; runs where mlx-optiq is installed, in an environment that knows nothing of Phyla.

    python -m tests.kvschemes.affine.optiq.checkpoint FOLDER                # in the project's environment
    python -m venv OTHER && OTHER/bin/pip install mlx-optiq==0.7.7 "mlx[cpu]==0.32.4"
    OTHER/bin/python tests/kvschemes/affine/optiq/make_goldens.py FOLDER

mlx-optiq keeps its hold on mlx-lm's generation loop: it replaces the function that converts caches, for each layer as
`kv_config.json` says, and for the fused cases the attention over quantised columns, as its server does.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import json
import platform
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx

NUM_TOKENS = 12
CHUNK = 16
PROMPT = [(7 * at * at + 3 * at + 1) % 256 for at in range(40)]

UNFUSED = {"float32": ("float32", 0), "bfloat16": ("bfloat16", 0), "bfloat16_start": ("bfloat16", 20)}
FUSED = {"bfloat16_fused": ("bfloat16", 0)}
"""Case to dtype and start. Its fused attention takes no float32."""


def main(folder: Path) -> None:
    serve = importlib.import_module("optiq.serve")
    serve.install_mixed_kv(serve._load_kv_config(str(folder / "float32" / "kv_config.json")), 0)
    arrays: dict[str, mx.array] = {}
    facts = {
        "mlx-optiq": importlib.metadata.version("mlx-optiq"),
        "mlx-lm": importlib.metadata.version("mlx-lm"),
        "mlx": importlib.metadata.version("mlx"),
        "platform": f"{platform.system()} {platform.machine()}",
    }
    for dtype in ("float32", "bfloat16"):
        facts[f"weights_{dtype}"] = hashlib.sha256((folder / dtype / "model.safetensors").read_bytes()).hexdigest()
    for case, (dtype, start) in UNFUSED.items():
        facts[f"tokens_{case}"], arrays[case] = run(folder / dtype, start)
    importlib.import_module("optiq.runtime.fused_quant_sdpa").install()
    for case, (dtype, start) in FUSED.items():
        facts[f"tokens_{case}"], arrays[case] = run(folder / dtype, start)
    mx.save_safetensors(str(Path(__file__).with_name("goldens.safetensors")), arrays, metadata=facts)
    print(json.dumps(facts, indent=2))


def run(folder: Path, start: int) -> tuple[str, mx.array]:
    """Greedy tokens as JSON, and the log-probabilities before each, (L, V), as mlx-lm's loop gives them."""
    utils: Any = importlib.import_module("mlx_lm.utils")
    loop: Any = importlib.import_module("mlx_lm.generate")
    model, _ = utils.load_model(folder)
    # The bits given here only say that caches are to be converted at all.
    steps = loop.generate_step(
        mx.array(PROMPT),
        model,
        max_tokens=NUM_TOKENS,
        prefill_step_size=CHUNK,
        kv_bits=8,
        quantized_kv_start=start,
    )
    tokens, logprobs = zip(*steps, strict=True)
    return json.dumps([int(token) for token in tokens]), mx.stack(logprobs)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
