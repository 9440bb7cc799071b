"""Products of a few rows in the shim, against float64: in copies of the library, so that every kernel can be tried."""

from __future__ import annotations

import ctypes
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import booleans, integers, sampled_from
from numpy.typing import NDArray
from phyla.backend.blas import built_shim
from phyla.backend.blas_library import FUNCTIONS, installed_libraries

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="MLX's CPU wheel for Linux only")

Array = NDArray[np.float32]
LANES = (4, 8, 16)
ROW_MAJOR, TRANSPOSED = 101, (111, 112)


@dataclass(frozen=True)
class Shims:
    """The library twice: on one thread and on two."""

    alone: ctypes.CDLL
    both: ctypes.CDLL

    def use_lanes(self, lanes: int) -> None:
        """Or the most that this processor has."""
        self.alone.phyla_blas_set_lanes(lanes)
        self.both.phyla_blas_set_lanes(lanes)


@pytest.fixture(scope="module")
def shims(tmp_path_factory: pytest.TempPathFactory) -> Shims:
    folder = tmp_path_factory.mktemp("shims")
    return Shims(bound(folder / "alone.so", num_threads=1), bound(folder / "both.so", num_threads=2))


def bound(path: Path, num_threads: int) -> ctypes.CDLL:
    """A copy: the same file would be the library that this process multiplies with."""
    library = next(installed_libraries())
    built = built_shim(library.naming.integer, None)
    assert built is not None
    shutil.copy(built, path)
    shim = ctypes.CDLL(str(path))
    shim.phyla_blas_bind.argtypes = [ctypes.c_void_p] * len(FUNCTIONS) + [ctypes.c_char_p, ctypes.c_int]
    shim.phyla_blas_bind(*(library.address(name) for name in FUNCTIONS), b"a copy", num_threads)
    return shim


@dataclass(frozen=True)
class Product:
    """`alpha * left @ right + beta * before`, with `gap` unused numbers behind every stored row."""

    left: Array
    right: Array
    before: Array
    left_transposed: bool = False
    right_transposed: bool = True
    gap: int = 0
    alpha: float = 1.0
    beta: float = 0.0

    def by(self, shim: ctypes.CDLL, rows: slice = slice(None)) -> Array:
        """Computed by a library for some of the rows; what lies in the gaps of the result has to stay."""
        left = stored(self.left[rows], self.left_transposed, self.gap)
        right = stored(self.right, self.right_transposed, self.gap)
        out = stored(self.before[rows], False, self.gap)
        num_rows, num_columns = self.before[rows].shape
        shim.cblas_sgemm(
            ROW_MAJOR,
            TRANSPOSED[self.left_transposed],
            TRANSPOSED[self.right_transposed],
            num_rows,
            num_columns,
            self.left.shape[1],
            ctypes.c_float(self.alpha),
            pointer(left),
            left.shape[1],
            pointer(right),
            right.shape[1],
            ctypes.c_float(self.beta),
            pointer(out),
            out.shape[1],
        )
        assert np.isnan(out[:, num_columns:]).all(), "written beyond a row"
        return out[:, :num_columns]

    def expected(self) -> NDArray[np.float64]:
        product = self.alpha * (self.left.astype(np.float64) @ self.right.astype(np.float64))
        return product if self.beta == 0 else product + self.beta * self.before.astype(np.float64)


def stored(matrix: Array, transposed: bool, gap: int) -> Array:
    """As it lies in memory, with NaN in the gaps."""
    laid = matrix.T if transposed else matrix
    memory = np.full((laid.shape[0], laid.shape[1] + gap), np.nan, dtype=np.float32)
    memory[:, : laid.shape[1]] = laid
    return memory


def pointer(array: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def product_of(num_rows: int, num_columns: int, num_summed: int, **options: float) -> Product:
    random = np.random.default_rng(num_rows + 64 * num_columns + 4096 * num_summed)
    left, right, before = (
        random.standard_normal(shape).astype(np.float32)
        for shape in ((num_rows, num_summed), (num_summed, num_columns), (num_rows, num_columns))
    )
    # An output that nobody adds to may hold anything.
    unset = np.full_like(before, np.nan) if not options.get("beta") else before
    return Product(left, right, unset, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("lanes", LANES)
@given(
    num_rows=integers(1, 33),
    num_columns=sampled_from([1, 3, 4, 9, 15, 16, 33, 64, 67, 131, 1030]),
    num_summed=sampled_from([0, 1, 3, 4, 7, 16, 31, 64, 100, 257]),
    left_transposed=booleans(),
    right_transposed=booleans(),
    gap=integers(0, 5),
    alpha=sampled_from([1.0, -0.5]),
    beta=sampled_from([0.0, 1.0, 2.0]),
)
def test_products_agree_with_float64_and_rows_have_the_bits_they_have_alone(
    shims: Shims, lanes: int, num_rows: int, num_columns: int, num_summed: int, **options: float
) -> None:
    shims.use_lanes(lanes)
    product = product_of(num_rows, num_columns, num_summed, **options)
    together = product.by(shims.both)
    np.testing.assert_allclose(together, product.expected(), atol=1e-4)
    few, row = slice(32), slice(num_rows // 2, num_rows // 2 + 1)
    np.testing.assert_array_equal(product.by(shims.alone, few), product.by(shims.both, few))
    np.testing.assert_array_equal(product.by(shims.alone, row), product.by(shims.both, few)[row])


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("right_transposed", [False, True])
@pytest.mark.parametrize("first", [1, 17, 64])
def test_a_slice_of_weights_gives_the_bits_of_the_whole(
    shims: Shims, lanes: int, right_transposed: bool, first: int
) -> None:
    shims.use_lanes(lanes)
    whole = product_of(5, 700, 193, right_transposed=right_transposed)
    part = Product(whole.left, whole.right[:, first:], whole.before[:, first:], right_transposed=right_transposed)
    np.testing.assert_array_equal(part.by(shims.both), whole.by(shims.both)[:, first:])


def test_an_infinite_weight_reaches_its_own_column_only(shims: Shims) -> None:
    shims.use_lanes(16)
    product = product_of(3, 9, 37)
    product.right[36, 4] = np.inf
    assert (~np.isfinite(product.by(shims.both))).any(axis=0).tolist() == [column == 4 for column in range(9)]
