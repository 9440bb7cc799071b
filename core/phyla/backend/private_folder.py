"""Folders that only this user can write: what is loaded as code must not lie where others can put files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from phyla.errors import BackendError

CACHE_FOLDER = Path(".cache") / "phyla"
"""Under the user's home folder."""


def private_folder(name: str, parent: Path | None = None) -> Path:
    """Make (if needed) and check a folder with mode 0700.

    Args:
        name: of the folder, one component.
        parent: where it lies; `~/.cache/phyla` if not given.

    Raises:
        BackendError: it can't be made, or it belongs to another user.
    """
    root = parent if parent is not None else Path.home() / CACHE_FOLDER
    folder = root / name
    try:
        root.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        facts = folder.lstat()
    except OSError as error:
        raise BackendError(f"Can't make the folder {folder}: {error}. Make it writable or set HOME.") from error
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
        raise BackendError(f"{folder} isn't a folder of this user, so nothing in it is loaded. Move it out of the way.")
    if facts.st_mode & 0o077:
        folder.chmod(0o700)
    return folder


def is_private_file(path: Path) -> bool:
    """Whether a file is a plain one of this user that nobody else can write."""
    try:
        facts = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o022
