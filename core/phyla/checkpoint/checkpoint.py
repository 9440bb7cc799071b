"""A model on disk, whatever its form: a folder, a GGUF file, a hub snapshot, something a plugin invents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import mlx.core as mx

    from phyla.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class TensorInfo:
    """One tensor as its header describes it; nothing of it is read."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """mlx name: `float32`, `bfloat16`, `uint32`, ..."""

    num_bytes: int
    shard: str
    """File name within the checkpoint, for messages."""


class Checkpoint(Protocol):
    """Read-only. Opening one validates headers before any native parser sees them; it loads no tensor.

    Names and config are in the Hugging Face layout whatever the file's own form is; quantised tensors come as MLX
    triples (`x.weight`, `x.scales`, `x.biases`) with a `quantization` section in `config` that describes them.
    """

    @property
    def reference(self) -> str:
        """What the user asked for, for messages."""
        ...

    @property
    def model_id(self) -> str:
        """The id served to clients: `org/name` where known, else a folder or file stem. Never a path."""
        ...

    @property
    def config(self) -> Mapping[str, Any]: ...

    @property
    def generation_config(self) -> Mapping[str, Any]:
        """Empty when the checkpoint has none."""
        ...

    @property
    def chat_template(self) -> str | None:
        """The Jinja source, or None when there is none (raw completion still works)."""
        ...

    @property
    def fingerprint(self) -> str:
        """Digest of config and tensor headers, or the hub snapshot's commit; part of every cache namespace."""
        ...

    def tensor_infos(self) -> Mapping[str, TensorInfo]:
        """Every tensor by name."""
        ...

    def load(self, names: Iterable[str]) -> dict[str, mx.array]:
        """The named tensors as lazy arrays. Called on the engine thread, where they must be evaluated.

        Raises:
            WeightMismatch: names that the checkpoint lacks, all of them.
            DamagedCheckpoint: a file changed since it was opened.
        """
        ...

    def tokenizer(self) -> Tokenizer:
        """The tokenizer of this checkpoint.

        Raises:
            TokenizerError: it has none that can be used.
        """
        ...

    def sidecar(self, name: str) -> bytes | None:
        """A small extra file (`kv_config.json`), or None. `name` has no path separators."""
        ...

    def companion(self, name: str) -> Checkpoint | None:
        """A checkpoint bundled inside this one (`mtp`), or None.

        Raises:
            CheckpointError: there is one, and it lacks something or is damaged.
        """
        ...


@dataclass(frozen=True)
class CheckpointOpener:
    """One way to open references, as `phyla_open_checkpoint` gives it; the highest rank that recognises it opens."""

    name: str
    rank: Callable[[str], int]
    """`reference -> rank`: 0 doesn't know it, 100 is certain (magic bytes, the right files). Reads little."""

    open: Callable[[str], Checkpoint]
