"""The compatibility matrix: which features work together, and the page that says so.

`python -m tests.compat.matrix` writes `docs/compatibility.md` from `expected.toml`.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
EXPECTED = FOLDER / "expected.toml"
PAGE = FOLDER.parent.parent / "docs" / "compatibility.md"

WORKS = "works"
REFUSED = "refused: "

PREAMBLE = """# What works together

Each line here was tried: a test runs both features in one request and compares the answer with the one each gives
alone. *Refused* means that the combination is turned down with a message that says why, never that it is ignored.

Made from `tests/compat/expected.toml` by `make docs`; a test compares the two.
"""


@dataclass(frozen=True)
class Cell:
    """Two features and what is expected of them in one request."""

    feature: str
    other: str
    expected: str

    @property
    def refusal(self) -> str | None:
        """What the message of the refusal must say; None where it works."""
        return self.expected.removeprefix(REFUSED) if self.expected.startswith(REFUSED) else None


def cell(feature: str, other: str) -> pytest.MarkDecorator:
    """Marks the test of a cell. Where the cell reads `refused: REASON` the test must raise an error that says so."""
    return pytest.mark.cell(feature, other)


def expected_cells() -> dict[tuple[str, str], Cell]:
    """The checked-in cells by section and key."""
    sections = tomllib.loads(EXPECTED.read_text("utf-8"))
    return {
        (feature, other): Cell(feature, other, expected)
        for feature, others in sections.items()
        for other, expected in others.items()
    }


def marked_cells() -> set[tuple[str, str]]:
    """The cells that a test in this folder is marked with."""
    return {pair for path in sorted(FOLDER.glob("test_*.py")) for pair in _marked(path)}


def page() -> str:
    """The page as it should read."""
    sections: dict[str, list[Cell]] = {}
    for one in expected_cells().values():
        sections.setdefault(one.feature, []).append(one)
    return "\n".join([PREAMBLE, *(_section(feature, cells) for feature, cells in sections.items())])


def _section(feature: str, cells: list[Cell]) -> str:
    lines = [f"## {feature}", "", "| with | |", "| --- | --- |"]
    return "\n".join([*lines, *(f"| {one.other} | {one.expected} |" for one in cells), ""])


def _marked(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "cell":
            feature, other = (ast.literal_eval(argument) for argument in node.args)
            yield feature, other


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
