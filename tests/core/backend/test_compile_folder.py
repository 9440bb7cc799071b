from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="MLX compiles in memory elsewhere")

COMPILE = """
import sys
from pathlib import Path
from phyla.backend.compile_folder import use_private_compile_folder

folder = use_private_compile_folder(Path(sys.argv[1]))
import mlx.core as mx

mx.eval(mx.compile(lambda x: mx.exp(x) * 2 - mx.sin(x))(mx.ones((4,))))
print(len(list(folder.glob("mlx/*/cpu/*.so"))), len(list(folder.glob("mlx/*/cpu/*.cpp"))))
"""


def compile_once(parent: Path) -> str:
    finished = subprocess.run(
        [sys.executable, "-c", COMPILE, str(parent)], capture_output=True, text=True, check=False, timeout=120
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.strip()


def test_what_is_compiled_lands_in_a_private_folder_and_is_kept(tmp_path: Path) -> None:
    assert compile_once(tmp_path) == "1 1"
    assert [path.name for path in tmp_path.iterdir()] == ["finished"]
    assert (tmp_path / "finished").stat().st_mode & 0o777 == 0o700
    assert len(list((tmp_path / "finished").glob("mlx/*/cpu/*.so"))) == 1


def test_the_next_process_compiles_nothing_again(tmp_path: Path) -> None:
    compile_once(tmp_path)
    assert compile_once(tmp_path) == "1 0"


def test_folders_of_killed_processes_are_removed(tmp_path: Path) -> None:
    left = tmp_path / "process-left"
    left.mkdir()
    old = time.time() - 30 * 24 * 3600
    os.utime(left, (old, old))
    compile_once(tmp_path)
    assert not left.exists()


def test_a_folder_that_goes_away_while_it_is_looked_at_is_nobodys_trouble(tmp_path: Path) -> None:
    # Listed and not there, as the folder of a process that ends between the two: a link that leads nowhere.
    (tmp_path / "process-ended").symlink_to(tmp_path / "gone")
    assert compile_once(tmp_path) == "1 1"
