"""Models by hub id: the local cache first, then a download that resumes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

from phyla.checkpoint import CheckpointOpener, FolderCheckpoint
from phyla.checkpoint.folder import CONFIG_NAME
from phyla.errors import CheckpointError, CheckpointNotFound, DamagedCheckpoint
from phyla.registry.places import hub_cache_folder
from phyla.registry.resolving import is_hub_id, is_path
from phyla.registry.settings import ModelsSettings

MODEL_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "*.tiktoken")
"""What a model needs to run. No Python files and no pickles: neither is ever used."""

DEFAULT_REVISION = "main"

_SHA256 = re.compile(r"^[0-9a-f]{64}$")


def hub_opener(settings: ModelsSettings) -> CheckpointOpener:
    """Opens `org/name` and `org/name@revision` out of the hub's cache; downloads nothing itself."""

    def rank(reference: str) -> int:
        return 60 if is_hub_id(reference) and not is_path(reference) else 0

    def open_model(reference: str) -> FolderCheckpoint:
        repository, revision = split_reference(reference)
        folder = cached_snapshot(repository, revision, hub_cache_folder(settings))
        if folder is None:
            raise CheckpointNotFound(f"{reference} isn't on this machine. `phyla get {repository}` downloads it.")
        return FolderCheckpoint.open(folder, reference, repository)

    return CheckpointOpener(name="hub", rank=rank, open=open_model)


def ensure_local(reference: str, settings: ModelsSettings) -> None:
    """Download a hub id that isn't here yet; everything else is left to its opener.

    Raises:
        CheckpointError: as `download`.
    """
    if not is_hub_id(reference) or is_path(reference):
        return
    repository, revision = split_reference(reference)
    if cached_snapshot(repository, revision, hub_cache_folder(settings)) is None:
        download(repository, settings, revision)


def split_reference(reference: str) -> tuple[str, str]:
    """(repository, revision) of `org/name@revision`."""
    repository, _, revision = reference.partition("@")
    return repository, revision or DEFAULT_REVISION


def cached_snapshot(repository: str, revision: str, hub_cache: Path) -> Path | None:
    """The snapshot that is already here, or None."""
    home = hub_cache / f"models--{repository.replace('/', '--')}"
    reference = home / "refs" / revision
    commit = reference.read_text("utf-8", "replace").strip() if reference.is_file() else revision
    snapshot = home / "snapshots" / commit
    return snapshot if (snapshot / CONFIG_NAME).is_file() else None


def download(
    repository: str,
    settings: ModelsSettings,
    revision: str = DEFAULT_REVISION,
    patterns: Sequence[str] = MODEL_FILES,
    endpoint: str | None = None,
) -> Path:
    """Fetch a snapshot into the hub's cache, going on where an earlier attempt ended; shows progress on stderr.

    Args:
        repository: `org/name`.
        settings: where the cache is, and whether downloads are allowed.
        revision: branch, tag or commit.
        patterns: files to fetch.
        endpoint: of a hub other than the usual one.

    Raises:
        CheckpointNotFound: no such repository or revision, or it may not be read.
        CheckpointError: downloads are off, the hub can't be reached, or a download broke off.
    """
    if settings.offline:
        raise CheckpointError(f"{repository} isn't on this machine, and --offline forbids downloading it.")
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        folder = snapshot_download(
            repository,
            revision=revision,
            cache_dir=hub_cache_folder(settings),
            allow_patterns=list(patterns),
            endpoint=endpoint,
        )
    except GatedRepoError as error:
        raise CheckpointNotFound(
            f"{repository} needs its terms accepted on the hub and a token: `hf auth login`."
        ) from error
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise CheckpointNotFound(f"The hub has no {repository} at revision '{revision}' that you may read.") from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, HfHubHTTPError, httpx.HTTPError, OSError) as error:
        raise CheckpointError(
            f"{repository} isn't complete on this machine and the hub can't be reached ({type(error).__name__}). "
            f"`phyla get {repository}` goes on where this ended; `phyla ls` lists what is here."
        ) from error
    return Path(folder)


def verify_snapshot(snapshot: Path, repository: str) -> int:
    """Compare large files with the digests that the cache names them by; returns how many were compared.

    Raises:
        DamagedCheckpoint: one differs; it's removed, so that the next download fetches it again.
    """
    num_compared = 0
    for path, blob in _digested_files(snapshot):
        digest = sha256()
        with blob.open("rb") as file:
            while chunk := file.read(1 << 22):
                digest.update(chunk)
        if digest.hexdigest() != blob.name:
            blob.unlink()
            path.unlink()
            raise DamagedCheckpoint(f"{path.name} of {repository} arrived damaged and was removed. Run get again.")
        num_compared += 1
    return num_compared


def _digested_files(snapshot: Path) -> Iterator[tuple[Path, Path]]:
    """(link, blob) of files whose blob is named by its SHA-256: the large ones."""
    for path in sorted(snapshot.rglob("*")):
        if path.is_symlink() and _SHA256.match((blob := path.resolve()).name) and blob.is_file():
            yield path, blob
