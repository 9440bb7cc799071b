"""Which references are GGUF files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from phyla import CheckpointOpener

from phyla_gguf.header import MAGIC

if TYPE_CHECKING:
    from phyla import Checkpoint


def opener() -> CheckpointOpener:
    """Opens a `.gguf` file, or a folder whose only model is one."""
    return CheckpointOpener(name="gguf", rank=_rank, open=_open)


def _rank(reference: str) -> int:
    path = _file_of(reference)
    if path is None:
        return 0
    with path.open("rb") as file:
        # A file that only has the ending still deserves the message that says what is wrong with it.
        return 100 if file.read(len(MAGIC)) == MAGIC else 50


def _open(reference: str) -> Checkpoint:
    from phyla_gguf.gguf_checkpoint import GGUFCheckpoint

    return GGUFCheckpoint(_file_of(reference) or Path(reference).expanduser(), reference)


def _file_of(reference: str) -> Path | None:
    path = Path(reference).expanduser()
    if path.is_file():
        with path.open("rb") as file:
            begins_right = file.read(len(MAGIC)) == MAGIC
        return path if begins_right or path.suffix == ".gguf" else None
    if path.is_dir() and not (path / "config.json").exists():
        files = sorted(path.glob("*.gguf"))
        return files[0] if len(files) == 1 else None
    return None
