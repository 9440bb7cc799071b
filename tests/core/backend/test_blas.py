"""The fast BLAS: loaded in processes of their own, since a process keeps what it loaded first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from phyla.backend import blas
from phyla.backend.blas import load_fast_blas
from phyla.backend.blas_library import installed_libraries
from phyla.errors import BackendError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="MLX's CPU wheel for Linux only")

PRELUDE = """
import sys
from pathlib import Path
from phyla.backend import blas
from phyla.backend.blas import load_fast_blas
"""


def run(program: str, *arguments: str, **environment: str) -> str:
    finished = subprocess.run(
        [sys.executable, "-c", PRELUDE + program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, **environment},
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.strip()


def test_the_report_names_library_kernels_and_threads() -> None:
    identity = run("print(load_fast_blas(threads=2).identity)")
    assert "2 threads" in identity
    assert identity.startswith(("OpenBLAS", "BLIS"))


def test_a_second_call_keeps_the_first_choice() -> None:
    assert run("a = load_fast_blas(threads=1); b = load_fast_blas(threads=2); print(a == b, b.identity)").startswith(
        "True"
    )


def test_none_keeps_the_reference_library() -> None:
    assert run("r = load_fast_blas('none'); print(r.identity, r.is_fast, repr(r.notice))") == "reference False ''"


def test_after_mlx_it_is_too_late_and_says_so() -> None:
    assert "call phyla.load first" in run("import mlx.core; print(load_fast_blas().notice)")


def test_a_named_file_that_is_no_library_is_refused() -> None:
    program = """
try:
    load_fast_blas(sys.argv[1])
except blas.BackendError as error:
    print(error)
"""
    assert "not a BLAS library" in run(program, __file__)


def test_a_library_can_be_named_by_path() -> None:
    path = next(iter(installed_libraries())).path
    assert run("print(load_fast_blas(sys.argv[1]).is_fast)", path) == "True"


def test_without_a_compiler_it_goes_on_slowly_with_a_remedy(tmp_path: Path) -> None:
    program = "blas.COMPILERS = (); print(load_fast_blas(folder=Path(sys.argv[1])))"
    report = run(program, str(tmp_path))
    assert "No C compiler found" in report


def test_two_processes_building_at_once_both_get_a_library(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PRELUDE + "print(load_fast_blas(folder=Path(sys.argv[1])).is_fast)", str(tmp_path)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [one.communicate(timeout=300)[0].strip() for one in started] == ["True", "True", "True"]
    assert [path.suffix for path in tmp_path.iterdir()] == [".so"]


def test_a_shim_that_others_can_write_is_built_again(tmp_path: Path) -> None:
    program = "print(load_fast_blas(folder=Path(sys.argv[1])).is_fast)"
    run(program, str(tmp_path))
    (shim,) = tmp_path.iterdir()
    shim.write_bytes(b"not a library")
    shim.chmod(0o722)
    assert run(program, str(tmp_path)) == "True"
    assert shim.read_bytes()[:4] == b"\x7fELF"


@pytest.mark.parametrize("layout", ["ab", "aB", "Ab", "AB"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 9), (2, 9), (8, 33), (9, 7), (17, 1), (1, 1), (64, 64)])
def test_products_agree_with_numpy(layout: str, rows: int, columns: int) -> None:
    import mlx.core as mx

    random = np.random.default_rng(rows * 100 + columns)
    left = random.standard_normal((31, rows) if layout[0] == "A" else (rows, 31)).astype(np.float32)
    right = random.standard_normal((columns, 31) if layout[1] == "B" else (31, columns)).astype(np.float32)
    got = (mx.array(left).T if layout[0] == "A" else mx.array(left)) @ (
        mx.array(right).T if layout[1] == "B" else mx.array(right)
    )
    expected = (left.T if layout[0] == "A" else left) @ (right.T if layout[1] == "B" else right)
    np.testing.assert_allclose(np.array(got), expected, atol=2e-5)


def test_a_product_with_nothing_to_sum_is_zero() -> None:
    import mlx.core as mx

    assert mx.all((mx.zeros((1, 0)) @ mx.zeros((0, 5))) == 0).item()


@pytest.mark.parametrize("rows", [2, 8, 32])
def test_a_row_of_a_narrow_product_has_the_bits_it_has_alone(rows: int) -> None:
    import mlx.core as mx

    weights = mx.random.normal((1000, 576), key=mx.random.key(0))
    many = mx.random.normal((rows, 576), key=mx.random.key(1))
    together = many @ weights.T
    alone = mx.concatenate([many[i : i + 1] @ weights.T for i in range(rows)])
    assert mx.array_equal(together, alone).item()


def test_a_row_slice_of_fused_weights_gives_the_bits_of_separate_ones() -> None:
    import mlx.core as mx

    fused = mx.random.normal((576 + 192 + 192, 576), key=mx.random.key(2))
    step = mx.random.normal((1, 576), key=mx.random.key(3))
    separate = mx.contiguous(fused[576:768]) + 0
    assert mx.array_equal(step @ fused[576:768].T, step @ separate.T).item()


@pytest.mark.parametrize(
    ("rows", "columns", "summed"), [(1, 5000, 600), (7, 3001, 576), (300, 700, 129), (3000, 65, 64)]
)
def test_products_that_are_cut_into_jobs_agree_with_numpy(rows: int, columns: int, summed: int) -> None:
    import mlx.core as mx

    random = np.random.default_rng(rows)
    left = random.standard_normal((rows, summed)).astype(np.float32)
    right = random.standard_normal((columns, summed)).astype(np.float32)
    got = mx.array(left) @ mx.array(right).T
    np.testing.assert_allclose(np.array(got), left.astype(np.float64) @ right.T.astype(np.float64), atol=2e-4)


def test_the_same_product_has_the_same_bits_every_time() -> None:
    import mlx.core as mx

    left = mx.random.normal((300, 576), key=mx.random.key(4))
    right = mx.random.normal((576, 1536), key=mx.random.key(5))
    assert all(mx.array_equal(left @ right, left @ right).item() for _ in range(50))


def test_threads_that_multiply_at_once_get_right_products() -> None:
    program = """
from concurrent.futures import ThreadPoolExecutor
load_fast_blas(threads=4)
import mlx.core as mx
weights = mx.random.normal((2048, 576))
row = mx.random.normal((3, 576))
expected = row @ weights.T
mx.eval(weights, row, expected)

def multiply(_):
    stream = mx.new_stream(mx.cpu)
    with mx.stream(stream):
        return all(mx.array_equal(row @ weights.T, expected).item() for _ in range(100))

with ThreadPoolExecutor(3) as pool:
    print(list(pool.map(multiply, range(3))))
"""
    assert run(program) == "[True, True, True]"


def test_a_forked_child_multiplies_without_the_threads_of_its_parent() -> None:
    program = """
import os
load_fast_blas(threads=2)
import ctypes
import numpy as np
front = ctypes.CDLL(None).cblas_sgemm
n = 512
ones = np.ones((n, n), dtype=np.float32)
out = np.zeros((n, n), dtype=np.float32)
pointer = ctypes.POINTER(ctypes.c_float)

def multiply():
    front(101, 111, 111, n, n, n, ctypes.c_float(1), ones.ctypes.data_as(pointer), n,
          ones.ctypes.data_as(pointer), n, ctypes.c_float(0), out.ctypes.data_as(pointer), n)

multiply()
child = os.fork()
if child == 0:
    out[:] = 0
    multiply()
    os._exit(0 if (out == n).all() else 1)
print(os.waitpid(child, 0)[1])
"""
    assert run(program) == "0"


def test_this_process_runs_on_the_fast_library() -> None:
    assert load_fast_blas().identity.split(", ")[1] == "2 threads"


def test_a_foreign_folder_is_not_trusted(tmp_path: Path) -> None:
    from phyla.backend.private_folder import private_folder

    (tmp_path / "real").mkdir()
    (tmp_path / "blas").symlink_to(tmp_path / "real")
    with pytest.raises(BackendError, match="isn't a folder of this user"):
        private_folder("blas", tmp_path)


def test_the_quota_of_the_control_group_bounds_the_threads() -> None:
    assert 1 <= blas.usable_cpus() <= len(os.sched_getaffinity(0))
