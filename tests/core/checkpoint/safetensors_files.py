"""Writing safetensors files byte by byte, honest ones and others."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any


def write_header(path: Path, header: dict[str, Any] | bytes, data: bytes = b"", length: int | None = None) -> Path:
    """A file of a header and tensor bytes; `length` lies about the header's size."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def entry(start: int, num_floats: int, **changes: Any) -> dict[str, Any]:
    """The description of a float32 vector, with changes."""
    described = {"dtype": "F32", "shape": [num_floats], "data_offsets": [start, start + 4 * num_floats]}
    return {**described, **changes}


def write_floats(path: Path, names: list[str], num_floats: int = 2) -> Path:
    """An honest file: each tensor is `num_floats` float32 numbers, counting up."""
    header = {name: entry(4 * num_floats * index, num_floats) for index, name in enumerate(names)}
    data = b"".join(struct.pack("<f", float(index)) for index in range(num_floats * len(names)))
    return write_header(path, header, data)


def write_folder(folder: Path, config: dict[str, Any] | str = "", **shards: list[str]) -> Path:
    """A model folder: a config and, by stem, shards with the named tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    text = config if isinstance(config, str) and config else json.dumps(config or {"model_type": "llama"})
    (folder / "config.json").write_text(text)
    for stem, names in shards.items():
        write_floats(folder / f"{stem}.safetensors", names)
    return folder
