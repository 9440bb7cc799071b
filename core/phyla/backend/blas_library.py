"""Which fast BLAS this machine has, and under which names it offers its functions."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SYSTEM_LIBRARIES = ("libopenblas.so.0", "libopenblas.so", "libblis.so.4", "libblis.so")

FUNCTIONS = ("sgemm", "dgemm", "cgemm")
"""What the shim needs, without the `cblas_` in front."""


@dataclass(frozen=True)
class Naming:
    """How a library spells `cblas_sgemm`, and how wide its integers are."""

    prefix: str
    suffix: str
    integer: Literal["int32_t", "int64_t"]

    def spell(self, name: str) -> str:
        return f"{self.prefix}{name}{self.suffix}"


NAMINGS = (
    Naming("", "", "int32_t"),
    Naming("scipy_", "64_", "int64_t"),
    Naming("", "64_", "int64_t"),
    Naming("scipy_", "", "int32_t"),
)


@dataclass(frozen=True)
class BlasLibrary:
    """A BLAS that was opened privately: its names are not visible to others."""

    path: str
    handle: ctypes.CDLL
    naming: Naming

    def address(self, function: str) -> int:
        """Where `cblas_<function>` lies."""
        pointer = ctypes.cast(self.handle[self.naming.spell(f"cblas_{function}")], ctypes.c_void_p)
        return pointer.value or 0

    def fix_threads(self, num_threads: int) -> None:
        """Make every later product use that many threads."""
        for name in (self.naming.spell("openblas_set_num_threads"), "bli_thread_set_num_threads"):
            setter = _function(self.handle, name)
            if setter is not None:
                setter.argtypes = [ctypes.c_int64 if name.startswith("bli") else ctypes.c_int]
                setter.restype = None
                setter(num_threads)
                return

    def version(self) -> str:
        """Name, version and the processor kernels it picked: they decide the low bits."""
        config = self._text(self.naming.spell("openblas_get_config"))
        if config:
            core = self._text(self.naming.spell("openblas_get_corename"))
            return " ".join([*config.split()[:2], core]).strip()
        blis = self._text("bli_info_get_version_str")
        return f"BLIS {blis}" if blis else Path(self.path).name

    def _text(self, name: str) -> str:
        getter = _function(self.handle, name)
        if getter is None:
            return ""
        getter.argtypes = []
        getter.restype = ctypes.c_char_p
        found = getter()
        return found.decode(errors="replace") if isinstance(found, bytes) else ""


def open_library(path: str) -> BlasLibrary | None:
    """Open one library; None if it can't be loaded or lacks a function the shim needs."""
    try:
        handle = ctypes.CDLL(path)
    except OSError:
        return None
    for naming in NAMINGS:
        names = [naming.spell(f"cblas_{function}") for function in FUNCTIONS]
        if all(_function(handle, name) is not None for name in names):
            return BlasLibrary(path, handle, naming)
    return None


def installed_libraries() -> Iterator[BlasLibrary]:
    """What is here: a system OpenBLAS or BLIS first, then the OpenBLAS inside numpy's wheel."""
    for path in (*SYSTEM_LIBRARIES, *_bundled_with_numpy()):
        library = open_library(path)
        if library is not None:
            yield library


def _bundled_with_numpy() -> list[str]:
    found = importlib.util.find_spec("numpy")
    if found is None or found.origin is None:
        return []
    folder = Path(found.origin).parent.parent / "numpy.libs"
    return [str(path) for path in sorted(folder.glob("lib*openblas*.so*"))]


def _function(handle: ctypes.CDLL, name: str) -> ctypes._NamedFuncPointer | None:
    try:
        return handle[name]
    except AttributeError:
        return None
