"""`phyla ls` and `phyla get` at the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from phyla.cli.ls import parse_size
from phyla.cli.main import main
from phyla.errors import UsageError

from tests.core.checkpoint.safetensors_files import write_folder


@pytest.fixture
def places(tmp_path: Path) -> list[str]:
    return ["--hub-cache", str(tmp_path / "hub"), "--models-folder", str(tmp_path / "models")]


def run(*arguments: str) -> int:
    return main(arguments, env={}, entry_points=[])


def test_ls_of_nothing_says_how_to_get_a_model(places: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("ls", *places) == 0
    assert "phyla get" in capsys.readouterr().err


def test_ls_lists_one_line_per_model(places: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_folder(tmp_path / "models" / "mine", {"model_type": "qwen3"}, model=["a"])
    home = tmp_path / "hub" / "models--org--tiny" / "snapshots"
    write_folder(home / ("a" * 40), model=["a"])
    write_folder(home / ("b" * 40), model=["a"])
    assert run("ls", *places) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["MODEL", "TYPE"], ["mine", "qwen3"], ["org/tiny", "llama"]]
    assert run("ls", "tiny", "--all-revisions", *places) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_ls_can_leave_out_large_models(places: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path / "models" / "big", model=["a"])
    (folder / "model.safetensors").write_bytes(bytes(2_000_000))
    assert run("ls", "--max-size", "1MB", *places) == 0
    assert capsys.readouterr().out == ""


def test_a_size_that_is_none_is_a_usage_error(places: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("ls", "--max-size", "plenty", *places) == 2
    assert "isn't a size" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"), [("10GB", 10**10), ("1.5 mb", 1_500_000), ("8GiB", 8 * 2**30), ("5B", 5)]
)
def test_sizes_are_decimal_or_binary(text: str, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "10", "GB", "-1GB", "1XB", "1GB2"])
def test_other_texts_are_no_sizes(text: str) -> None:
    with pytest.raises(UsageError):
        parse_size(text)


def test_get_offline_downloads_nothing(places: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("get", "org/tiny", "--offline", *places) == 1
    assert "--offline" in capsys.readouterr().err


def test_get_of_an_unknown_query_is_not_found(places: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("get", "nothing", *places) == 1
    assert "No model on this machine matches 'nothing'" in capsys.readouterr().err


def test_get_of_a_local_folder_has_nothing_to_download(
    places: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_folder(tmp_path / "models" / "mine", model=["a"])
    assert run("get", "mine", *places) == 2
    assert "didn't come from the hub" in capsys.readouterr().err
