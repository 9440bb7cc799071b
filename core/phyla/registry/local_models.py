"""What models are on this machine: the hub's cache and the models folder, from configs and file sizes alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from phyla.checkpoint.folder import CONFIG_NAME
from phyla.checkpoint.json_file import read_json_object
from phyla.checkpoint.shards import INDEX_NAME
from phyla.errors import DamagedCheckpoint

_DRAFT_TYPES = ("_assistant", "_mtp")
_DRAFT_ARCHITECTURES = ("DSparkModel", "DFlashModel", "Eagle3Model")


@dataclass(frozen=True)
class LocalModel:
    """One model on disk."""

    model_id: str
    path: Path
    """What opens it."""

    source: Literal["hub", "folder", "gguf"]
    num_bytes: int
    """Weights only."""

    model_type: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    revision: str = ""
    """Commit of a hub snapshot."""

    is_current: bool = True
    """False for a snapshot that a newer one of the same repository replaced."""

    is_drafter: bool = False
    is_complete: bool = True
    """False when the index names shards that aren't there."""


def scan_models(hub_cache: Path, folder: Path) -> list[LocalModel]:
    """Every model found, by id; unreadable ones are left out.

    Args:
        hub_cache: `models--org--name` folders with snapshots.
        folder: GGUF files and model folders, at most one level deep.
    """
    found = [*_hub_models(hub_cache), *_folder_models(folder)]
    return sorted(found, key=lambda model: (model.model_id.lower(), not model.is_current))


def _hub_models(hub_cache: Path) -> Iterator[LocalModel]:
    for repository in sorted(hub_cache.glob("models--*")):
        snapshots = [path for path in repository.glob("snapshots/*") if path.is_dir()]
        model_id = repository.name.removeprefix("models--").replace("--", "/")
        current = _current(repository, snapshots)
        for snapshot in snapshots:
            model = _from_folder(snapshot, model_id, "hub", snapshot.name, snapshot == current)
            if model is not None:
                yield model


def _current(repository: Path, snapshots: list[Path]) -> Path | None:
    """The snapshot that `main` names, else the newest."""
    reference = repository / "refs" / "main"
    if reference.is_file():
        named = repository / "snapshots" / reference.read_text("utf-8", "replace").strip()
        if named in snapshots:
            return named
    return max(snapshots, key=lambda path: path.stat().st_mtime_ns, default=None)


def _folder_models(folder: Path) -> Iterator[LocalModel]:
    for path in sorted(folder.glob("*")):
        if path.suffix == ".gguf" and path.is_file():
            yield LocalModel(path.stem, path, "gguf", path.stat().st_size, model_type="gguf")
        elif path.is_dir():
            model = _from_folder(path, path.name, "folder", "", True)
            if model is not None:
                yield model
            else:
                yield from _single_gguf(path)


def _single_gguf(folder: Path) -> Iterator[LocalModel]:
    files = sorted(folder.glob("*.gguf"))
    if len(files) == 1:
        yield LocalModel(files[0].stem, files[0], "gguf", files[0].stat().st_size, model_type="gguf")


def _from_folder(
    folder: Path, model_id: str, source: Literal["hub", "folder"], revision: str, is_current: bool
) -> LocalModel | None:
    weights = [path for path in folder.glob("*.safetensors") if path.is_file()]
    if not weights or not (folder / CONFIG_NAME).is_file():
        return None
    try:
        config = read_json_object(folder / CONFIG_NAME, model_id)
        is_complete = _has_all_shards(folder, model_id)
    except DamagedCheckpoint:
        return None
    model_type = config.get("model_type")
    return LocalModel(
        model_id=model_id,
        path=folder,
        source=source,
        num_bytes=sum(path.stat().st_size for path in weights),
        model_type=model_type if isinstance(model_type, str) else "",
        config=config,
        revision=revision,
        is_current=is_current,
        is_drafter=_is_drafter(config, folder),
        is_complete=is_complete,
    )


def _has_all_shards(folder: Path, model_id: str) -> bool:
    if not (folder / INDEX_NAME).is_file():
        return True
    shards = read_json_object(folder / INDEX_NAME, model_id).get("weight_map")
    if not isinstance(shards, dict):
        return False
    return all(isinstance(name, str) and (folder / Path(name).name).is_file() for name in set(shards.values()))


def _is_drafter(config: Mapping[str, Any], folder: Path) -> bool:
    """Drafters speed another model up and can't be served themselves."""
    architectures = config.get("architectures")
    names = [name for name in architectures if isinstance(name, str)] if isinstance(architectures, list) else []
    return (
        str(config.get("model_type", "")).endswith(_DRAFT_TYPES)
        or any(name.endswith(_DRAFT_ARCHITECTURES) for name in names)
        or (folder / "dspark.json").is_file()
    )
