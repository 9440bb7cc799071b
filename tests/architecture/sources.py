"""The source tree as these tests read it: parsed, never imported, so that the whole folder runs in seconds."""

from __future__ import annotations

import ast
import functools
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
ROOTS = ("core", "server", "families", "methods", "kvschemes", "plugins")


@dataclass(frozen=True)
class Import:
    """One import statement's target."""

    module: str
    line: int
    at_import: bool
    """Runs when the module is imported: at the top level and not under TYPE_CHECKING."""

    at_run_time: bool
    """Runs at all: not under TYPE_CHECKING."""


@dataclass(frozen=True)
class Source:
    """One file of a source root."""

    root: str
    path: Path
    module: str
    tree: ast.Module

    @property
    def package(self) -> str:
        return self.module.split(".")[0]

    @property
    def where(self) -> str:
        return self.path.relative_to(REPOSITORY).as_posix()

    def imports(self) -> Iterator[Import]:
        yield from _imports(self.tree.body, self, at_import=True, at_run_time=True)


@functools.cache
def sources() -> tuple[Source, ...]:
    """Every Python file under the source roots."""
    found = []
    for root in ROOTS:
        base = REPOSITORY / root
        for path in sorted(base.rglob("*.py")):
            parts = path.relative_to(base).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found.append(Source(root, path, name, ast.parse(path.read_text(encoding="utf-8"))))
    return tuple(found)


@functools.cache
def files_of_tests() -> tuple[tuple[Path, str], ...]:
    """Every Python file under tests/, with its text."""
    return tuple((path, path.read_text(encoding="utf-8")) for path in sorted((REPOSITORY / "tests").rglob("*.py")))


@functools.cache
def pyproject() -> dict[str, Any]:
    """The parsed pyproject.toml."""
    return tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))


def loaded_by_importing(module: str) -> dict[str, str]:
    """What importing `module` loads, first-party files followed: module to the file that first asks for it."""
    by_name = {source.module: source for source in sources()}
    seen: dict[str, str] = {}
    waiting = [(module, "the start")]
    while waiting:
        name, asked_by = waiting.pop()
        if name in seen:
            continue
        seen[name] = asked_by
        parent, _, leaf = name.rpartition(".")
        if parent:
            waiting.append((parent, asked_by))
        source = by_name.get(name)
        if source is None and parent in by_name and leaf:
            continue
        if source is not None:
            waiting.extend((one.module, source.where) for one in source.imports() if one.at_import)
    return seen


def _imports(body: list[ast.stmt], source: Source, *, at_import: bool, at_run_time: bool) -> Iterator[Import]:
    for node in body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, at_import and at_run_time, at_run_time)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, source)
            yield Import(base, node.lineno, at_import and at_run_time, at_run_time)
            for alias in node.names:
                yield Import(f"{base}.{alias.name}", node.lineno, at_import and at_run_time, at_run_time)
        else:
            deferred = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            for _, value in ast.iter_fields(node):
                inner = [one for one in value if isinstance(one, ast.stmt)] if isinstance(value, list) else []
                handlers = (
                    [one for one in value if isinstance(one, ast.ExceptHandler | ast.match_case)]
                    if isinstance(value, list)
                    else []
                )
                for handler in handlers:
                    inner.extend(handler.body)
                yield from _imports(
                    inner, source, at_import=at_import and not deferred, at_run_time=at_run_time and not typing_only
                )


def _absolute(node: ast.ImportFrom, source: Source) -> str:
    if node.level == 0:
        assert node.module is not None
        return node.module
    parts = source.module.split(".")
    if source.path.name != "__init__.py":
        parts = parts[:-1]
    kept = parts[: len(parts) - (node.level - 1)]
    return ".".join([*kept, *([node.module] if node.module else [])])
