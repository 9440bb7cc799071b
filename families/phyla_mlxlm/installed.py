"""What the installed mlx-lm implements, read from its files: importing it would import mlx and transformers."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

MODEL_CLASSES = frozenset({"Model", "ModelArgs"})
"""What a module of mlx-lm defines exactly if it is an architecture and not a part of several."""


@dataclass(frozen=True)
class InstalledMlxLm:
    """Where mlx-lm is, and what it calls what."""

    folder: Path
    same_as: Mapping[str, str]
    """`model_type` to the module that runs it, where the names differ."""

    same_architecture_as: Mapping[tuple[str, str], str]
    """The same for a `model_type` and an entry of `architectures` together."""

    @classmethod
    def find(cls) -> InstalledMlxLm | None:
        """Look for the package; None if there is none."""
        # A top-level name only: looking for a submodule would import the package.
        spec = find_spec("mlx_lm")
        if spec is None or not spec.submodule_search_locations:
            return None
        folder = Path(next(iter(spec.submodule_search_locations)))
        tables = _literals(folder / "utils.py", ("MODEL_REMAPPING", "MODEL_ARCHITECTURE_REMAPPING"))
        return cls(folder, tables["MODEL_REMAPPING"], tables["MODEL_ARCHITECTURE_REMAPPING"])

    def module_of(self, config: Mapping[str, Any]) -> str | None:
        """Name of the module under `mlx_lm.models` that runs such a config; None if there is none."""
        model_type = config.get("model_type")
        if not isinstance(model_type, str):
            return None
        stated = config.get("architectures")
        architectures = [stated] if isinstance(stated, str) else stated if isinstance(stated, list) else []
        by_architecture = [self.same_architecture_as.get((model_type, str(one))) for one in architectures]
        name = next((one for one in by_architecture if one is not None), self.same_as.get(model_type, model_type))
        is_module = name in {path.stem for path in (self.folder / "models").glob("*.py")}
        return name if is_module and _defined(self.folder / "models" / f"{name}.py") >= MODEL_CLASSES else None


def _literals(path: Path, names: tuple[str, ...]) -> dict[str, Any]:
    """Dictionaries that a module assigns at its top level; empty ones where it doesn't."""
    found: dict[str, Any] = {name: {} for name in names}
    for statement in _statements(path):
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name = statement.targets[0].id
            if name in found:
                found[name] = ast.literal_eval(statement.value)
    return found


def _defined(path: Path) -> set[str]:
    """Names that a module defines or imports at its top level."""
    names: set[str] = set()
    for statement in _statements(path):
        if isinstance(statement, ast.ClassDef):
            names.add(statement.name)
        elif isinstance(statement, ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in statement.names)
        elif isinstance(statement, ast.Assign):
            names.update(target.id for target in statement.targets if isinstance(target, ast.Name))
    return names


def _statements(path: Path) -> list[ast.stmt]:
    try:
        return ast.parse(path.read_text("utf-8")).body
    except (OSError, SyntaxError, UnicodeDecodeError):
        return []
