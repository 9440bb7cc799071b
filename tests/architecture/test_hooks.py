"""Every hook is documented, tested, and implemented by something in the box or by the outside plugin."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.architecture.sources import REPOSITORY, files_of_tests, sources

PENDING = Path(__file__).parent / "pending_hooks.txt"


def test_every_hook_is_implemented() -> None:
    outside = [text for path, text in files_of_tests() if "outside" in path.parts]
    texts = [source.path.read_text("utf-8") for source in sources() if source.module != "phyla.hookspecs"]
    implemented = {name for text in [*texts, *outside] for name in re.findall(r"@hookimpl\s+def (phyla_\w+)", text)}
    assert _hooks() - implemented - _pending("implemented") == set()


def test_every_hook_is_documented() -> None:
    page = REPOSITORY / "docs" / "hooks.md"
    text = page.read_text("utf-8") if page.exists() else ""
    assert _hooks() - set(re.findall(r"^#+ `(phyla_\w+)", text, re.MULTILINE)) - _pending("documented") == set()


def test_every_hook_is_tested() -> None:
    texts = [text for path, text in files_of_tests() if "architecture" not in path.parts]
    named = {name for text in texts for name in re.findall(r"\b(phyla_\w+)\b", text)}
    assert _hooks() - named - _pending("tested") == set()


def _hooks() -> set[str]:
    specs = next(source for source in sources() if source.module == "phyla.hookspecs")
    return {node.name for node in specs.tree.body if isinstance(node, ast.FunctionDef)}


def _pending(what: str) -> set[str]:
    lines = [line.split() for line in PENDING.read_text("utf-8").splitlines() if line and not line.startswith("#")]
    return {hook for hook, missing in lines if missing == what}
