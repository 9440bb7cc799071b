"""Reading a safetensors header ourselves, so that no native parser meets a hostile one.

The format: eight bytes of little-endian header length, that many bytes of JSON, then the tensors' bytes, which the
header's offsets must tile exactly: no gap, no overlap, nothing left over.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phyla.checkpoint.checkpoint import TensorInfo
from phyla.checkpoint.json_file import parse_json_object
from phyla.errors import DamagedCheckpoint

MAX_HEADER_BYTES = 64 * 1024 * 1024
MAX_RANK = 16
MAX_AXIS = 2**31 - 1

MLX_DTYPES: Mapping[str, tuple[str, int]] = {
    "BOOL": ("bool", 1),
    "U8": ("uint8", 1),
    "I8": ("int8", 1),
    "F8_E4M3": ("uint8", 1),
    "F8_E8M0": ("uint8", 1),
    "U16": ("uint16", 2),
    "I16": ("int16", 2),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "U32": ("uint32", 4),
    "I32": ("int32", 4),
    "F32": ("float32", 4),
    "U64": ("uint64", 8),
    "I64": ("int64", 8),
    "C64": ("complex64", 8),
}
"""Spelling in the file to (mlx name, bytes per element): what MLX's own reader takes."""


@dataclass(frozen=True)
class SafetensorsHeader:
    """What one file says about itself, checked against its length."""

    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]
    data_start: int
    """Offset of the first tensor byte."""


def read_header(path: Path, owner: str) -> SafetensorsHeader:
    """Read and check the header of one file; no tensor byte is touched.

    Args:
        path: the file.
        owner: the model's id, for messages.

    Raises:
        DamagedCheckpoint: truncated, foreign or hostile.
    """
    what = f"{path.name} of {owner}"
    try:
        with path.open("rb") as file:
            num_bytes = file.seek(0, 2)
            file.seek(0)
            header = _header_bytes(file.read(8), num_bytes, what)
            data = file.read(header)
    except OSError as error:
        raise DamagedCheckpoint(f"{what} can't be read: {error.strerror}. Fetch the model again.") from error
    if len(data) != header:
        raise DamagedCheckpoint(f"{what} ends inside its header. Fetch the model again.")
    if not data.startswith(b"{"):
        raise DamagedCheckpoint(f"{what} isn't a safetensors file: its header doesn't open a JSON object.")
    fields = parse_json_object(data, f"The header of {what}")
    metadata = _metadata(fields.pop("__metadata__", {}), what)
    data_start = 8 + header
    return SafetensorsHeader(_tensors(fields, num_bytes - data_start, path.name, what), metadata, data_start)


def _header_bytes(prefix: bytes, num_bytes: int, what: str) -> int:
    if len(prefix) < 8:
        raise DamagedCheckpoint(f"{what} has {num_bytes} bytes, too few for a safetensors file. Fetch it again.")
    (length,) = struct.unpack("<Q", prefix)
    if length > MAX_HEADER_BYTES:
        raise DamagedCheckpoint(
            f"{what} claims a header of {length} bytes; at most {MAX_HEADER_BYTES} are read. It isn't a safetensors "
            "file, or a hostile one."
        )
    if length > num_bytes - 8:
        raise DamagedCheckpoint(
            f"{what} claims a header of {length} bytes but has {num_bytes} in all. It is truncated: fetch it again."
        )
    return int(length)


def _metadata(value: Any, what: str) -> Mapping[str, str]:
    if value is None:
        return {}  # What MLX writes for a file without any.
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise DamagedCheckpoint(f"The __metadata__ of {what} isn't a map of texts.")
    return value


def _tensors(fields: Mapping[str, Any], num_data_bytes: int, shard: str, what: str) -> dict[str, TensorInfo]:
    ranges: list[tuple[int, int, str]] = []
    tensors: dict[str, TensorInfo] = {}
    for name, entry in fields.items():
        info, start = _tensor(name, entry, shard, what)
        tensors[name] = info
        ranges.append((start, start + info.num_bytes, name))
    _check_tiling(ranges, num_data_bytes, what)
    return tensors


def _tensor(name: str, entry: Any, shard: str, what: str) -> tuple[TensorInfo, int]:
    tensor = f"Tensor {name[:120]!r} in {what}"
    if not isinstance(entry, dict):
        raise DamagedCheckpoint(f"{tensor} is described by a {type(entry).__name__}, not an object.")
    dtype = entry.get("dtype")
    if not isinstance(dtype, str) or dtype not in MLX_DTYPES:
        raise DamagedCheckpoint(f"{tensor} has dtype {dtype!r:.40}; MLX reads {', '.join(sorted(MLX_DTYPES))}.")
    mlx_name, element_bytes = MLX_DTYPES[dtype]
    shape = entry.get("shape")
    if not isinstance(shape, list) or len(shape) > MAX_RANK or not all(_is_axis(axis) for axis in shape):
        raise DamagedCheckpoint(f"{tensor} has no usable shape: up to {MAX_RANK} axes of 0 to {MAX_AXIS} are.")
    offsets = entry.get("data_offsets")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_count(offset) for offset in offsets):
        raise DamagedCheckpoint(f"{tensor} has no pair of data offsets.")
    start, end = offsets
    num_bytes = element_bytes
    for axis in shape:
        num_bytes *= axis
    if end - start != num_bytes:
        raise DamagedCheckpoint(f"{tensor} needs {num_bytes} bytes for its shape but is given {end - start}.")
    return TensorInfo(name, tuple(shape), mlx_name, num_bytes, shard), start


def _check_tiling(ranges: list[tuple[int, int, str]], num_data_bytes: int, what: str) -> None:
    """The ranges lie side by side and fill the file; anything else reads bytes that aren't the tensor's."""
    end_so_far = 0
    for start, end, name in sorted(ranges):
        if end > num_data_bytes:
            raise DamagedCheckpoint(
                f"Tensor {name[:120]!r} in {what} ends at byte {end} of {num_data_bytes}. The file is truncated or "
                "hostile: fetch it again."
            )
        if start < end_so_far:
            raise DamagedCheckpoint(f"Tensor {name[:120]!r} in {what} overlaps the one before it.")
        if start > end_so_far:
            raise DamagedCheckpoint(f"{what} has a hole of {start - end_so_far} bytes before {name[:120]!r}.")
        end_so_far = end
    if end_so_far != num_data_bytes:
        raise DamagedCheckpoint(f"{what} has {num_data_bytes - end_so_far} bytes that belong to no tensor.")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_axis(value: Any) -> bool:
    return _is_count(value) and value <= MAX_AXIS
