"""The front of a GGUF file: metadata and where the tensors lie, every length checked against the file.

Source:
    The GGUF specification of the ggml project, versions 2 and 3 (little-endian).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phyla.errors import DamagedCheckpoint

from phyla_gguf.block_types import BLOCK_TYPES, BlockType

MAGIC = b"GGUF"
MAX_FRONT_BYTES = 512 * 1024 * 1024
"""Metadata with the largest vocabularies in use is some tens of megabytes."""

MAX_ENTRIES = 1_000_000
MAX_NAME_BYTES = 65_535
MAX_AXES = 4
MAX_AXIS = 2**31 - 1
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS: Mapping[int, str] = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True)
class GGUFTensor:
    """One tensor's place. Axes in row-major order: the file has them the other way round."""

    name: str
    shape: tuple[int, ...]
    block_type: BlockType
    start: int
    """Offset in the file."""

    num_bytes: int


@dataclass(frozen=True)
class GGUFHeader:
    """What the file says about itself."""

    metadata: Mapping[str, Any]
    tensors: Mapping[str, GGUFTensor]


def read_header(path: Path, owner: str) -> GGUFHeader:
    """Read and check everything in front of the tensors.

    Args:
        path: the file.
        owner: the model's id, for messages.

    Raises:
        DamagedCheckpoint: truncated, hostile, of an unknown version, or with a tensor type that isn't read.
    """
    try:
        num_bytes = path.stat().st_size
        with path.open("rb") as file:
            front = file.read(min(num_bytes, MAX_FRONT_BYTES))
    except OSError as error:
        raise DamagedCheckpoint(f"{owner} can't be read: {error.strerror}.") from error
    cursor = _Cursor(memoryview(front), owner)
    if cursor.take(4) != MAGIC:
        raise DamagedCheckpoint(f"{owner} isn't a GGUF file: it doesn't begin with the letters GGUF.")
    version = cursor.number("I")
    if version not in (2, 3):
        raise DamagedCheckpoint(f"{owner} is GGUF version {version}; little-endian versions 2 and 3 are read.")
    num_tensors = cursor.count("tensors", at_least_bytes=24)
    num_metadata = cursor.count("metadata entries", at_least_bytes=13)
    metadata: dict[str, Any] = {}
    for _ in range(num_metadata):
        _put(metadata, cursor.string("a metadata key", MAX_NAME_BYTES), cursor.value, owner)
    described: dict[str, GGUFTensor] = {}
    for _ in range(num_tensors):
        name = cursor.string("a tensor name", MAX_NAME_BYTES)
        _put(described, name, lambda name=name: _tensor(cursor, name), owner)  # type: ignore[misc]
    alignment = _alignment(metadata, owner)
    data_start = -(-cursor.position // alignment) * alignment
    return GGUFHeader(metadata, _placed(described, data_start, alignment, num_bytes, owner))


class _Cursor:
    """Reads on from where it is, never past the end."""

    def __init__(self, data: memoryview, owner: str) -> None:
        self._data = data
        self.owner = owner
        self.position = 0

    def take(self, num_bytes: int) -> memoryview:
        if num_bytes > len(self._data) - self.position:
            raise DamagedCheckpoint(f"{self.owner} ends inside its header. It is truncated: fetch it again.")
        taken = self._data[self.position : self.position + num_bytes]
        self.position += num_bytes
        return taken

    def number(self, code: str) -> int:
        (value,) = struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))
        return int(value)

    def count(self, what: str, at_least_bytes: int, limit: int = MAX_ENTRIES) -> int:
        """A count that the rest of the file has room for."""
        count = self.number("Q")
        if count > min(limit, (len(self._data) - self.position) // at_least_bytes):
            raise DamagedCheckpoint(f"{self.owner} claims {count} {what}, more than it has room for.")
        return count

    def string(self, what: str, limit: int = MAX_FRONT_BYTES) -> str:
        length = self.number("Q")
        if length > limit:
            raise DamagedCheckpoint(f"{self.owner} claims {length} bytes for {what}; at most {limit} are read.")
        try:
            return bytes(self.take(length)).decode("utf-8")
        except UnicodeDecodeError as error:
            raise DamagedCheckpoint(f"{self.owner} has {what} that isn't UTF-8.") from error

    def value(self) -> Any:
        kind = self.number("I")
        return self._array() if kind == _ARRAY else self._plain(kind)

    def _plain(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string("a metadata text")
        if kind == _BOOL:
            return self.number("B") != 0
        if kind not in _SCALARS:
            raise DamagedCheckpoint(f"{self.owner} has metadata of an unknown type {kind}.")
        (value,) = struct.unpack(f"<{_SCALARS[kind]}", self.take(struct.calcsize(f"<{_SCALARS[kind]}")))
        return value

    def _array(self) -> list[Any]:
        kind = self.number("I")
        if kind == _STRING:
            return [self.string("a metadata text") for _ in range(self.count("texts", 8, MAX_FRONT_BYTES))]
        code = "B" if kind == _BOOL else _SCALARS.get(kind)
        if code is None:
            raise DamagedCheckpoint(f"{self.owner} has an array of an unknown or nested type {kind}.")
        width = struct.calcsize(f"<{code}")
        count = self.count("numbers", width, MAX_FRONT_BYTES)
        return list(struct.unpack(f"<{count}{code}", self.take(count * width)))


def _put(target: dict[str, Any], key: str, read: Callable[[], Any], owner: str) -> None:
    if key in target:
        raise DamagedCheckpoint(f"{owner} has {key[:120]!r} twice.")
    target[key] = read()


def _tensor(cursor: _Cursor, name: str) -> GGUFTensor:
    what = f"Tensor {name[:120]!r} of {cursor.owner}"
    num_axes = cursor.number("I")
    if not 1 <= num_axes <= MAX_AXES:
        raise DamagedCheckpoint(f"{what} has {num_axes} axes; 1 to {MAX_AXES} are read.")
    axes = [cursor.number("Q") for _ in range(num_axes)]
    if not all(1 <= axis <= MAX_AXIS for axis in axes):
        raise DamagedCheckpoint(f"{what} has an axis that isn't 1 to {MAX_AXIS} long.")
    type_id = cursor.number("I")
    block_type = BLOCK_TYPES.get(type_id)
    if block_type is None:
        known = ", ".join(known.name for known in BLOCK_TYPES.values())
        raise DamagedCheckpoint(f"{what} is stored as GGUF type {type_id}; {known} are read. Choose another file.")
    if axes[0] % block_type.num_values:
        raise DamagedCheckpoint(f"{what} has rows of {axes[0]}, not a multiple of {block_type.num_values}.")
    num_bytes = axes[0] // block_type.num_values * block_type.num_bytes
    for axis in axes[1:]:
        num_bytes *= axis
    return GGUFTensor(name, tuple(reversed(axes)), block_type, cursor.number("Q"), num_bytes)


def _alignment(metadata: Mapping[str, Any], owner: str) -> int:
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment not in (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096):
        raise DamagedCheckpoint(f"{owner} has an alignment of {alignment!r:.40}; powers of two from 8 to 4096 are.")
    return alignment


def _placed(
    described: Mapping[str, GGUFTensor], data_start: int, alignment: int, num_bytes: int, owner: str
) -> dict[str, GGUFTensor]:
    """The tensors at their offsets in the file, side by side but for padding."""
    end_so_far = data_start
    placed: dict[str, GGUFTensor] = {}
    for tensor in sorted(described.values(), key=lambda tensor: tensor.start):
        what = f"Tensor {tensor.name[:120]!r} of {owner}"
        start = data_start + tensor.start
        if tensor.start % alignment:
            raise DamagedCheckpoint(f"{what} isn't aligned to {alignment} bytes.")
        if start < end_so_far:
            raise DamagedCheckpoint(f"{what} overlaps the one before it.")
        if start + tensor.num_bytes > num_bytes:
            raise DamagedCheckpoint(f"{what} ends past the file's {num_bytes} bytes. It is truncated: fetch it again.")
        end_so_far = start + tensor.num_bytes
        placed[tensor.name] = GGUFTensor(tensor.name, tensor.shape, tensor.block_type, start, tensor.num_bytes)
    return placed
