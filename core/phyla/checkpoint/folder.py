"""A checkpoint in a folder: `config.json`, safetensors, and what lies beside them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phyla.checkpoint.checkpoint import CheckpointOpener, TensorInfo
from phyla.checkpoint.json_file import canonical, read_json_object
from phyla.checkpoint.shards import Shards, listed, read_shards
from phyla.errors import CheckpointNotFound, DamagedCheckpoint, TokenizerError, WeightMismatch

if TYPE_CHECKING:
    import mlx.core as mx

    from phyla.tokenizer.tokenizer import Tokenizer

CONFIG_NAME = "config.json"
MOST_TOKEN_IDS = 2**31
MAX_SIDECAR_BYTES = 16 * 1024 * 1024
MAX_TEMPLATE_BYTES = 1024 * 1024

_COMMIT = re.compile(r"^[0-9a-f]{40}$")
_SAMPLES = 16
_SAMPLE_BYTES = 4096


class FolderCheckpoint:
    """A model folder in the Hugging Face layout, as published or as MLX converted it. Runs no code from it."""

    def __init__(self, folder: Path, reference: str, model_id: str, config: Mapping[str, Any], shards: Shards) -> None:
        self._folder = folder
        self._shards = shards
        self._stamps = {name: _stamp(path) for name, path in shards.paths.items()}
        self.reference = reference
        self.model_id = model_id
        self.config = config

    @classmethod
    def open(cls, path: str | Path, reference: str | None = None, model_id: str | None = None) -> FolderCheckpoint:
        """Read config and headers; load nothing.

        Args:
            path: the folder.
            reference: what the user asked for, where that isn't the path.
            model_id: the id to serve, where the folder's name isn't it.

        Raises:
            CheckpointNotFound: no folder, or no config in it.
            DamagedCheckpoint: config, index or headers that don't hold.
        """
        folder = Path(path).expanduser()
        asked = reference if reference is not None else str(path)
        name = model_id if model_id is not None else _model_id(folder)
        if not folder.is_dir():
            raise CheckpointNotFound(f"There is no folder '{asked}'. Give a model folder, a GGUF file or org/name.")
        if not (folder / CONFIG_NAME).is_file():
            raise CheckpointNotFound(f"'{asked}' has no {CONFIG_NAME}, so it isn't a model folder.")
        config = read_json_object(folder / CONFIG_NAME, name)
        return cls(folder, asked, name, config, read_shards(folder, name))

    @property
    def folder(self) -> Path:
        """Where the files are; for programs that read them on their own, never for messages."""
        return self._folder

    @cached_property
    def generation_config(self) -> Mapping[str, Any]:
        """Raises DamagedCheckpoint if the file is there and isn't JSON."""
        path = self._folder / "generation_config.json"
        return read_json_object(path, self.model_id) if path.is_file() else {}

    @cached_property
    def tokenizer_config(self) -> Mapping[str, Any]:
        """`tokenizer_config.json`, empty when absent. Raises DamagedCheckpoint."""
        path = self._folder / "tokenizer_config.json"
        return read_json_object(path, self.model_id) if path.is_file() else {}

    @cached_property
    def chat_template(self) -> str | None:
        """`chat_template.jinja`, else the tokenizer config's, else `chat_template.json`'s."""
        path = self._folder / "chat_template.jinja"
        if path.is_file():
            return self._template_text(path)
        own = _default_template(self.tokenizer_config.get("chat_template"))
        if own is not None:
            return own
        path = self._folder / "chat_template.json"
        return _default_template(read_json_object(path, self.model_id).get("chat_template")) if path.is_file() else None

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the config, every tensor header and a sample of each shard's bytes, and the hub commit if known.

        The sample tells two fine-tunes of one architecture apart, which headers alone can't.
        """
        digest = sha256(canonical(self.config))
        if _COMMIT.match(self._folder.name) and self._folder.parent.name == "snapshots":
            digest.update(self._folder.name.encode())
        for name in sorted(self._shards.tensors):
            info = self._shards.tensors[name]
            digest.update(f"{name}\0{info.shape}\0{info.dtype}\0".encode())
        for name in sorted(self._shards.paths):
            _digest_sample(digest.update, self._shards.paths[name])
        return digest.hexdigest()

    def tensor_infos(self) -> Mapping[str, TensorInfo]:
        return self._shards.tensors

    def load(self, names: Iterable[str]) -> dict[str, mx.array]:
        import mlx.core as mx

        wanted = list(names)
        if missing := sorted(name for name in wanted if name not in self._shards.tensors):
            raise WeightMismatch(f"{self.model_id} has no tensor {listed(missing)}.")
        by_shard: dict[str, list[str]] = {}
        for name in wanted:
            by_shard.setdefault(self._shards.tensors[name].shard, []).append(name)
        found: dict[str, mx.array] = {}
        for shard, members in by_shard.items():
            path = self._shards.paths[shard]
            if _stamp(path) != self._stamps[shard]:
                raise DamagedCheckpoint(f"{shard} of {self.model_id} changed after it was checked. Open it again.")
            arrays = mx.load(str(path), format="safetensors")
            if not isinstance(arrays, dict):
                raise DamagedCheckpoint(f"{shard} of {self.model_id} isn't a map of tensors.")
            found.update({name: arrays[name] for name in members})
        return found

    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def sidecar(self, name: str) -> bytes | None:
        path = self._beside(name)
        if not path.is_file():
            return None
        with path.open("rb") as file:
            data = file.read(MAX_SIDECAR_BYTES + 1)
        if len(data) > MAX_SIDECAR_BYTES:
            raise DamagedCheckpoint(f"{name} of {self.model_id} is larger than {MAX_SIDECAR_BYTES} bytes.")
        return data

    def companion(self, name: str) -> FolderCheckpoint | None:
        folder = self._beside(name)
        if not folder.is_dir():
            return None
        return FolderCheckpoint.open(folder, f"{self.reference}/{name}", f"{self.model_id}/{name}")

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        from phyla.checkpoint.tokenizer_files import open_tokenizer

        return open_tokenizer(self._folder, self.model_id, self.tokenizer_config, _vocab_size(self.config))

    def _beside(self, name: str) -> Path:
        if Path(name).name != name or "\\" in name or name in {"", ".", ".."}:
            raise ValueError(f"{name!r} isn't the name of a file beside the config")
        return self._folder / name

    def _template_text(self, path: Path) -> str:
        data = path.read_bytes()
        if len(data) > MAX_TEMPLATE_BYTES:
            raise TokenizerError(f"{path.name} of {self.model_id} is larger than {MAX_TEMPLATE_BYTES} bytes.")
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise TokenizerError(f"{path.name} of {self.model_id} isn't UTF-8 text (byte {error.start}).") from error


def folder_opener() -> CheckpointOpener:
    """Opens folders on this machine."""
    return CheckpointOpener(name="folder", rank=_rank, open=FolderCheckpoint.open)


def _rank(reference: str) -> int:
    folder = Path(reference).expanduser()
    if (folder / CONFIG_NAME).is_file():
        return 100
    # Low, not zero: a folder without a config deserves the message that says so.
    return 20 if folder.is_dir() else 0


def _model_id(folder: Path) -> str:
    """`org/name` in a hub cache (`models--org--name/snapshots/COMMIT`), else the folder's own name."""
    resolved = folder.absolute()
    if resolved.parent.name == "snapshots" and resolved.parent.parent.name.startswith("models--"):
        return resolved.parent.parent.name.removeprefix("models--").replace("--", "/")
    return resolved.resolve().name or "model"


def _default_template(value: Any) -> str | None:
    """The template of a tokenizer config: a text, or a list of named ones of which `default` counts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        named = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
        chosen = named.get("default", next(iter(named.values()), None))
        return chosen if isinstance(chosen, str) else None
    return None


def _vocab_size(config: Mapping[str, Any]) -> int:
    """As the config says, for a checkpoint whose tokenizer can't be asked."""
    section = config.get("text_config")
    stated = (section if isinstance(section, Mapping) else {}).get("vocab_size", config.get("vocab_size"))
    return stated if isinstance(stated, int) else MOST_TOKEN_IDS


def _stamp(path: Path) -> tuple[int, int, int]:
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _digest_sample(update: Any, path: Path) -> None:
    num_bytes = path.stat().st_size
    update(str(num_bytes).encode())
    stride = max(num_bytes // _SAMPLES, _SAMPLE_BYTES)
    with path.open("rb") as file:
        for start in range(0, num_bytes, stride):
            file.seek(start)
            update(file.read(_SAMPLE_BYTES))
