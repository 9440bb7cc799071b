"""Hub ids: the cache first, downloads that resume, and clear words where there is no way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from phyla.errors import CheckpointError, CheckpointNotFound, DamagedCheckpoint
from phyla.registry.hub import cached_snapshot, download, ensure_local, hub_opener, verify_snapshot
from phyla.registry.settings import ModelsSettings

from tests.core.checkpoint.safetensors_files import write_floats, write_folder, write_header
from tests.core.registry.hub_server import COMMIT, Hub, running_hub


@pytest.fixture
def files(tmp_path: Path) -> dict[str, bytes]:
    weights = write_floats(tmp_path / "w.safetensors", ["a", "b"], num_floats=50_000).read_bytes()
    config = json.dumps({"model_type": "llama"}).encode()
    return {"config.json": config, "model.safetensors": weights, "modeling_evil.py": b"raise SystemExit"}


@pytest.fixture
def hub(files: dict[str, bytes]) -> Iterator[Hub]:
    with running_hub(files) as hub:
        yield hub


@pytest.fixture
def settings(tmp_path: Path) -> ModelsSettings:
    return ModelsSettings(hub_cache=str(tmp_path / "hub"))


def cached(settings: ModelsSettings, repository: str = "org/tiny", revision: str = "main") -> Path | None:
    assert settings.hub_cache is not None
    return cached_snapshot(repository, revision, Path(settings.hub_cache))


def test_a_download_is_a_model_that_opens_without_the_hub(hub: Hub, settings: ModelsSettings) -> None:
    folder = download("org/tiny", settings, endpoint=hub.url)
    checkpoint = hub_opener(settings).open("org/tiny")
    assert checkpoint.model_id == "org/tiny"
    assert sorted(checkpoint.load(["a", "b"])) == ["a", "b"]
    assert cached(settings) == folder
    assert cached(settings, revision=COMMIT) == folder


def test_code_in_a_repository_is_not_even_fetched(hub: Hub, settings: ModelsSettings) -> None:
    folder = download("org/tiny", settings, endpoint=hub.url)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_a_download_that_broke_off_goes_on_where_it_ended(hub: Hub, settings: ModelsSettings, tmp_path: Path) -> None:
    # The client writes pieces of ten mebibytes: whatever is less is asked for again.
    large = {"a": {"dtype": "U8", "shape": [12 << 20], "data_offsets": [0, 12 << 20]}}
    hub.files["model.safetensors"] = write_header(tmp_path / "x", large, bytes(12 << 20)).read_bytes()
    hub.cut_after = 11 << 20
    folder = download("org/tiny", settings, endpoint=hub.url)
    assert [asked for _, _, asked in hub.asked if asked] == [f"bytes={10 << 20}-"]
    assert (folder / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    assert verify_snapshot(folder, "org/tiny") == 2


def test_a_file_that_arrived_damaged_is_removed_and_said(hub: Hub, settings: ModelsSettings) -> None:
    folder = download("org/tiny", settings, endpoint=hub.url)
    blob = (folder / "model.safetensors").resolve()
    blob.write_bytes(blob.read_bytes()[:-1] + b"\xff")
    with pytest.raises(DamagedCheckpoint, match="arrived damaged"):
        verify_snapshot(folder, "org/tiny")
    assert not (folder / "model.safetensors").exists()


def test_an_unknown_repository_is_not_found(hub: Hub, settings: ModelsSettings) -> None:
    with pytest.raises(CheckpointNotFound, match="no org/none at revision 'main'"):
        download("org/none", settings, endpoint=hub.url)


def test_without_a_hub_the_message_says_what_to_do(settings: ModelsSettings) -> None:
    with running_hub({}) as gone:
        url = gone.url
    with pytest.raises(CheckpointError, match="can't be reached"):
        download("org/tiny", settings, endpoint=url)


def test_offline_downloads_nothing(settings: ModelsSettings) -> None:
    offline = ModelsSettings(hub_cache=settings.hub_cache, offline=True)
    with pytest.raises(CheckpointError, match="--offline"):
        ensure_local("org/tiny", offline)


def test_opening_never_downloads(settings: ModelsSettings) -> None:
    with pytest.raises(CheckpointNotFound, match="phyla get org/tiny"):
        hub_opener(settings).open("org/tiny")


@pytest.mark.parametrize("reference", ["./org/tiny", "model.gguf", "tiny"])
def test_what_is_no_hub_id_is_left_to_its_opener(settings: ModelsSettings, reference: str) -> None:
    ensure_local(reference, settings.model_copy(update={"offline": True}))


def test_a_revision_may_be_named(tmp_path: Path, settings: ModelsSettings) -> None:
    home = Path(settings.hub_cache or "") / "models--org--tiny"
    write_folder(home / "snapshots" / COMMIT, model=["a"])
    (home / "refs").mkdir()
    (home / "refs" / "v2").write_text(COMMIT)
    assert hub_opener(settings).open("org/tiny@v2").model_id == "org/tiny"


@pytest.mark.parametrize(
    ("reference", "expected"),
    [("org/name", 60), ("org/name@v1", 60), ("name", 0), ("a/b/c", 0), ("./org/name", 0), ("org/name.gguf", 0)],
)
def test_hub_ids_are_told_from_paths(settings: ModelsSettings, reference: str, expected: int) -> None:
    assert hub_opener(settings).rank(reference) == expected


def test_a_folder_of_that_name_wins(tmp_path: Path, settings: ModelsSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert hub_opener(settings).rank("org/name") == 0
