"""Installs the outside distribution for real, and runs phyla with and without it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "phyla-abacus"

RunOutside = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with phyla-abacus as pip installs it, its metadata included."""
    # A copy: building leaves nothing behind in the tree.
    source = shutil.copytree(SOURCE, tmp_path_factory.mktemp("source") / "phyla-abacus")
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--target", str(target), str(source)], check=True, timeout=240)
    return target


@pytest.fixture(scope="session")
def run_outside(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> RunOutside:
    """`run_outside(program, *arguments)` in a fresh interpreter that sees the installed distribution."""
    folder = tmp_path_factory.mktemp("work")
    path = os.pathsep.join([str(installed), *(entry for entry in sys.path if entry)])

    def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program, *arguments],
            check=False,
            capture_output=True,
            text=True,
            timeout=240,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path},
        )

    return run


@pytest.fixture(scope="session")
def phyla(run_outside: RunOutside) -> RunOutside:
    """`phyla(*arguments)`: the command line, beside the installed distribution."""
    program = "import sys; from phyla.cli.main import main; sys.exit(main())"
    return lambda *arguments: run_outside(program, *arguments)
