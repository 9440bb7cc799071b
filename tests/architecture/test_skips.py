"""No test is skipped or expected to fail unless the checked-in list says so."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.architecture.sources import REPOSITORY, files_of_tests

LIST = Path(__file__).parent / "skips.txt"
SKIPPING = (
    "pytest.mark.skip",
    "pytest.mark.skipif",
    "pytest.skip",
    "pytest.mark.xfail",
    "pytest.xfail",
    "pytest.importorskip",
)


def test_skips_are_the_checked_in_ones() -> None:
    listed = [line for line in LIST.read_text("utf-8").splitlines() if line and not line.startswith("#")]
    found = [one for path, text in files_of_tests() for one in _skips(path, text)]
    assert sorted(found) == sorted(listed)


def _skips(path: Path, text: str) -> list[str]:
    where = path.relative_to(REPOSITORY).as_posix()
    names = (ast.unparse(node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute))
    return [f"{where} {name}" for name in names if name in SKIPPING]
