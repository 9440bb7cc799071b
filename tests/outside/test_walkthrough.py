"""The walkthrough in the docs is the code that the tests install and run."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCE = HERE / "phyla-abacus"
PAGE = (HERE.parents[1] / "docs" / "writing-plugins.md").read_text("utf-8")


@pytest.mark.parametrize(
    "file",
    [SOURCE / "phyla_abacus" / "__init__.py", SOURCE / "phyla_abacus" / "model.py", HERE / "abacus_model.py"],
    ids=lambda file: file.name,
)
def test_the_page_shows_the_file_that_is_used(file: Path) -> None:
    code = file.read_text("utf-8").strip()
    assert f"```python\n{code}\n```" in PAGE


def test_the_page_declares_the_package_as_the_one_that_is_installed() -> None:
    shown, used = tomllib.loads(_block("toml")), tomllib.loads((SOURCE / "pyproject.toml").read_text("utf-8"))
    assert shown["build-system"] == used["build-system"]
    assert shown["project"].items() >= {"name": "phyla-abacus", "version": "0.3.0", "dependencies": ["phyla"]}.items()
    assert shown["project"]["entry-points"]["phyla"].items() <= used["project"]["entry-points"]["phyla"].items()
    assert set(_packages(shown)) <= set(_packages(used))


def test_the_page_shows_the_test_that_is_run() -> None:
    run = (HERE / "test_family.py").read_text("utf-8")
    shown = re.search(r"class TestAbacus\(FamilyContract\):.*?(?=\n```)", PAGE, re.DOTALL)
    assert shown is not None
    assert _lines(shown[0]) == [
        re.sub(r": Path|: list\[int\]| -> np\.ndarray", "", one) for one in _lines(run[run.index("class ") :])
    ]


def _block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


def _packages(project: dict[str, dict[str, dict[str, dict[str, dict[str, list[str]]]]]]) -> list[str]:
    return project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]


def _lines(code: str) -> list[str]:
    return [line for line in code.splitlines() if line.strip()]
