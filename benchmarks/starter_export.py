"""A model's weights as a folder that mlx-lm loads, in the form they are stored in: nothing rounded.

In a process of its own: `python -m benchmarks.starter_export REFERENCE FOLDER`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import phyla


def main() -> None:
    reference, folder = sys.argv[1], Path(sys.argv[2])
    with phyla.load(reference) as model:
        import mlx.core as mx

        checkpoint = model.checkpoint
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(dict(checkpoint.config)))
        tensors = dict(checkpoint.load(list(checkpoint.tensor_infos())))
        mx.save_safetensors(str(folder / "model.safetensors"), tensors, metadata={"format": "mlx"})


if __name__ == "__main__":
    main()
