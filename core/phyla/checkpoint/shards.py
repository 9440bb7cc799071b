"""Which safetensors files make up a folder, and what tensors they hold."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phyla.checkpoint.checkpoint import TensorInfo
from phyla.checkpoint.json_file import read_json_object
from phyla.checkpoint.safetensors_header import read_header
from phyla.errors import DamagedCheckpoint

INDEX_NAME = "model.safetensors.index.json"
MAX_LISTED = 20
"""Names that one message lists before it only counts."""

_NUMBERED = re.compile(r"^(?P<stem>.+)-(?P<number>\d{1,6})-of-(?P<total>\d{1,6})\.safetensors$")


@dataclass(frozen=True)
class Shards:
    """The files of one checkpoint, every header read and checked."""

    paths: Mapping[str, Path]
    tensors: Mapping[str, TensorInfo]


def read_shards(folder: Path, owner: str) -> Shards:
    """Every weight file of a folder: the index's shards whatever their names, and `model*.safetensors` beside them.

    A tensor that the index doesn't list counts all the same.

    Raises:
        DamagedCheckpoint: absent shards, all of them named; a tensor that isn't where the index says, or in two files;
            a header that doesn't hold.
    """
    index = _read_index(folder, owner)
    names = sorted({*index.values(), *(path.name for path in folder.glob("model*.safetensors"))})
    if not names:
        raise DamagedCheckpoint(_nothing_there(folder, owner))
    absent = [name for name in _expected(names) if not (folder / name).is_file()]
    if absent:
        raise DamagedCheckpoint(f"{owner} lacks {listed(absent)}. Fetch the model again: `phyla get` resumes.")
    paths = {name: folder / name for name in names}
    tensors: dict[str, TensorInfo] = {}
    for name, path in paths.items():
        found = read_header(path, owner).tensors
        if twice := sorted(tensors.keys() & found.keys()):
            raise DamagedCheckpoint(
                f"{owner} has {listed(twice)} in {name} and in another shard. Remove the file that doesn't belong."
            )
        tensors.update(found)
    _check_index(index, tensors, owner)
    return Shards(paths, tensors)


def listed(names: Sequence[str]) -> str:
    """Names for a message, the first few of many."""
    shown = ", ".join(names[:MAX_LISTED])
    return shown if len(names) <= MAX_LISTED else f"{shown} and {len(names) - MAX_LISTED} more"


def _read_index(folder: Path, owner: str) -> dict[str, str]:
    path = folder / INDEX_NAME
    if not path.is_file():
        return {}
    weight_map: Any = read_json_object(path, owner).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise DamagedCheckpoint(f"{INDEX_NAME} of {owner} has no weight_map from tensors to file names.")
    for name in set(weight_map.values()):
        if Path(name).name != name or "\\" in name or name.startswith(".") or not name.endswith(".safetensors"):
            raise DamagedCheckpoint(f"{INDEX_NAME} of {owner} names {name[:120]!r}, which isn't a file beside it.")
    return weight_map


def _expected(names: Sequence[str]) -> list[str]:
    """The names, and those that a numbered one says must exist."""
    expected = set(names)
    for name in names:
        match = _NUMBERED.match(name)
        if match and 1 <= (total := int(match["total"])) <= 10_000:
            digits = len(match["number"])
            expected.update(
                f"{match['stem']}-{number:0{digits}d}-of-{match['total']}.safetensors" for number in range(1, total + 1)
            )
    return sorted(expected)


def _check_index(index: Mapping[str, str], tensors: Mapping[str, TensorInfo], owner: str) -> None:
    misplaced = sorted(name for name, shard in index.items() if name not in tensors or tensors[name].shard != shard)
    if misplaced:
        raise DamagedCheckpoint(f"{owner}: {INDEX_NAME} and the shards disagree about {listed(misplaced)}.")


def _nothing_there(folder: Path, owner: str) -> str:
    if any(folder.glob("*.gguf")):
        return f"{owner} holds GGUF files and no model*.safetensors: name the .gguf file itself."
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt")) or any(folder.glob("*.pth")):
        return f"{owner} holds pickled weights only, which can run code and aren't read. Convert it to safetensors."
    return f"{owner} has no model*.safetensors and no {INDEX_NAME}."
