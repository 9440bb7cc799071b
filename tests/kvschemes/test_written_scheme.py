"""The page on writing a scheme, followed: its files make a plugin that passes the suite."""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from phyla.plugins import discover
from phyla.selection import select
from phyla.settings import load_settings
from phyla.testing.scheme import SchemeContract
from phyla.testing.stepping import TEST_BACKEND
from phyla.testing.tiny import tiny_checkpoint
from phyla.testing.tiny.configs import tiny_config

from tests.written_page import written_plugin

FILES = ("pyproject.toml", "phyla_half/__init__.py", "phyla_half/encoding.py", "test_half.py")


@pytest.fixture(scope="class")
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("phyla-half")
    with written_plugin("kvschemes/README.md", FILES, folder):
        yield folder


@pytest.mark.usefixtures("written")
class TestHalf(SchemeContract):
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _as_the_page_says(cls, written: Path) -> None:
        page = importlib.import_module("test_half").TestHalf
        cls.scheme, cls.layer, cls.error_bound = page.scheme, page.layer, page.error_bound


@pytest.mark.usefixtures("written")
class TestHalfRing(TestHalf):
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _in_a_ring(cls, _as_the_page_says: None) -> None:
        cls.layer = replace(cls.layer, kind="sliding", window=8)


def test_a_plan_finds_it_by_its_entry_point(written: Path, tmp_path: Path) -> None:
    project = tomllib.loads((written / "pyproject.toml").read_text())["project"]
    (module,) = project["entry-points"]["phyla"].values()
    manager = discover()
    manager.register("half", importlib.import_module(module))
    folder = tiny_checkpoint(tmp_path / "tiny", tiny_config("llama", num_hidden_layers=2))
    settings = load_settings(manager.settings_sections(), flags={"--kv-scheme": "half"}, env={})
    assert select(str(folder), manager, settings, TEST_BACKEND).layer_schemes == ("half", "half")
