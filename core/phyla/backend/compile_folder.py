"""A private place for the libraries that `mx.compile` builds on a Linux CPU.

MLX writes and then dlopens `<temp folder>/mlx/<version>/cpu/<predictable name>.so`: in a shared temp folder another
user could put code there first, and two processes can load each other's half-written files. Each process therefore
works in a folder of its own, which starts with links to what earlier processes finished.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

from phyla.backend.private_folder import is_private_file, private_folder

STALE_SECONDS = 7 * 24 * 3600
"""A folder this old was left behind by a process that was killed."""


def use_private_compile_folder(parent: Path | None = None) -> Path | None:
    """Send `mx.compile`'s files to a private folder, removed when the process ends. None where MLX compiles in memory.

    Only the C environment's TMPDIR changes, which is what MLX reads: Python's tempfile goes on as before.

    Args:
        parent: where the folders lie; by default `compiled` under the user's cache folder.
    """
    if sys.platform != "linux":
        return None
    store = parent if parent is not None else private_folder("compiled")
    finished = private_folder("finished", store)
    mine = Path(tempfile.mkdtemp(prefix="process-", dir=store))
    _link_libraries(finished, mine)
    _remove_stale(store)
    os.putenv("TMPDIR", str(mine))
    atexit.register(_publish, mine, finished, os.getpid())
    return mine


def _link_libraries(source: Path, target: Path) -> None:
    for library in source.glob("mlx/*/cpu/*.so"):
        if is_private_file(library):
            link = target / library.relative_to(source)
            link.parent.mkdir(parents=True, exist_ok=True)
            # A taken name is the same library: its name holds the kernel's hash.
            if not link.exists():
                os.link(library, link)


def _publish(mine: Path, finished: Path, owner_pid: int) -> None:
    """Keep what this process built for the next one. A forked child must not take its parent's folder away."""
    if os.getpid() != owner_pid:
        return
    with contextlib.suppress(OSError):  # what isn't kept is compiled again
        _link_libraries(mine, finished)
    shutil.rmtree(mine, ignore_errors=True)


def _remove_stale(store: Path) -> None:
    written = {folder: _last_written(folder) for folder in store.glob("process-*")}
    newest = max(written.values(), default=0.0)
    for folder, when in written.items():
        if when < newest - STALE_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)


def _last_written(folder: Path) -> float:
    """Seconds since the epoch; 0 if the process that it belongs to has just ended and taken it away."""
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:
        return 0.0
