"""The page on writing a method, followed: its files make a plugin that passes the suite."""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from phyla.draft.method import DraftMethod
from phyla.plugins import discover
from phyla.selection import select
from phyla.settings import load_settings
from phyla.testing.method import MethodContract
from phyla.testing.stepping import TEST_BACKEND
from phyla.testing.tiny import tiny_checkpoint
from phyla.testing.tiny.configs import tiny_config

from tests.written_page import written_plugin

FILES = ("pyproject.toml", "phyla_parrot/__init__.py", "phyla_parrot/provider.py", "test_parrot.py")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("phyla-parrot")
    with written_plugin("methods/writing.md", FILES, folder):
        yield folder


@pytest.mark.usefixtures("written")
class TestParrot(MethodContract):
    @pytest.fixture
    def method(self, written: Path) -> DraftMethod:
        page = importlib.import_module("test_parrot")
        assert issubclass(page.TestParrot, MethodContract)
        method: DraftMethod = page.PARROT
        return method


def test_a_plan_finds_it_by_its_entry_point(written: Path, tmp_path: Path) -> None:
    project = tomllib.loads((written / "pyproject.toml").read_text())["project"]
    (module,) = project["entry-points"]["phyla"].values()
    manager = discover()
    manager.register("parrot", importlib.import_module(module))
    folder = tiny_checkpoint(tmp_path / "tiny", tiny_config("llama", num_hidden_layers=2))
    settings = load_settings(manager.settings_sections(), flags={"--method": "parrot"}, env={})
    chosen = select(str(folder), manager, settings, TEST_BACKEND).method
    assert chosen is not None
    assert chosen.name == "parrot"
