"""On a machine where mlx can't be imported, every command that needs it names the remedy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from phyla.backend.detect import installed_suppliers, remedy


@pytest.fixture
def broken_mlx(tmp_path: Path) -> Path:
    """A folder whose `mlx` fails as the bare wheel does on Linux."""
    package = tmp_path / "mlx"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "core.py").write_text("raise ImportError('libmlx.so: cannot open shared object file')\n")
    return tmp_path


def run(broken_mlx: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(broken_mlx), *(entry for entry in sys.path if entry)])
    program = "import sys; from phyla.cli.main import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": path},
    )


def test_doctor_reports_it_as_a_problem(broken_mlx: Path) -> None:
    ran = run(broken_mlx, "doctor")
    assert ran.returncode == 1
    assert "PROBLEM MLX can't be imported: libmlx.so" in ran.stdout
    assert remedy(installed_suppliers()) in ran.stdout


def test_explain_stops_with_it(broken_mlx: Path, toy_folder: Path) -> None:
    ran = run(broken_mlx, "explain", str(toy_folder))
    assert ran.returncode == 1
    assert remedy(installed_suppliers()) in ran.stderr


def test_help_and_plugins_need_no_mlx(broken_mlx: Path) -> None:
    assert run(broken_mlx, "--help").returncode == 0
    assert run(broken_mlx, "plugins").returncode == 0


def test_on_linux_both_extras_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    assert "phyla[cpu]" in remedy(())
    assert "phyla[cuda]" in remedy(())
