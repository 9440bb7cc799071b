"""The tiny model that the goldens are of: sliding and full layers, each quantised in a way of its own.

`python -m tests.kvschemes.affine.optiq.checkpoint FOLDER` writes it, once per dtype.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from phyla.testing.tiny import tiny_checkpoint
from phyla.testing.tiny.configs import tiny_config

DTYPES = ("float32", "bfloat16")
CONFIG = tiny_config("llama", layer_types=["sliding_attention", "full_attention"] * 2, sliding_window=8, vocab_size=256)
FORMS = ((8, 64), (4, 32), (4, 64), (8, 32))
"""Bits and group size of each layer."""


def write_model(folder: Path, dtype: str) -> Path:
    """Write the model with its `kv_config.json` into `folder/dtype` and return that."""
    path = tiny_checkpoint(folder / dtype, CONFIG, tokenizer=False, dtype=dtype)
    entries = [{"layer_idx": at, "bits": bits, "group_size": group} for at, (bits, group) in enumerate(FORMS)]
    (path / "kv_config.json").write_text(json.dumps(entries), "utf-8")
    return path


if __name__ == "__main__":
    for dtype in DTYPES:
        write_model(Path(sys.argv[1]), dtype)
