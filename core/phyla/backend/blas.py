"""A fast BLAS under MLX on a Linux CPU.

MLX's CPU wheel for Linux links reference BLAS. Symbols that were loaded globally before it win over those it links,
so `load_fast_blas` puts a faster library in front, through a small C shim that is built once (`blas_shim/`). It has to
run before mlx is imported, and does nothing on macOS or under CUDA.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from phyla.backend.blas_library import FUNCTIONS, BlasLibrary, installed_libraries, open_library
from phyla.backend.private_folder import is_private_file, private_folder
from phyla.errors import BackendError

SHIM_SOURCES = Path(__file__).with_name("blas_shim")
MOST_LANES = 16
"""Numbers in the widest vectors that the shim has a kernel for; it takes what the processor has."""

COMPILERS = ("cc", "gcc", "clang")
REMEDY = (
    "install a C compiler or OpenBLAS (Debian, Ubuntu: apt install gcc, or libopenblas0-pthread), "
    "or name a library with --blas PATH"
)


@dataclass(frozen=True)
class BlasReport:
    """What `load_fast_blas` did."""

    identity: str
    """Library, version, its kernels, threads and shim, for `NumericalIdentity`; empty off the Linux CPU wheel."""

    is_fast: bool
    """Whether MLX's products run in a fast library."""

    notice: str = ""
    """One line for the user: why it is slow and what to do; empty if there is nothing to say."""


def load_fast_blas(setting: str = "auto", threads: int | None = None, folder: Path | None = None) -> BlasReport:
    """Load a fast BLAS globally; call it before mlx is imported. Safe to call again: the first call's choice stands.

    Args:
        setting: `auto`, `none` to keep MLX's own, or the path of a shared library.
        threads: threads of each product; by default the CPUs this process may use.
        folder: where the shim is kept; by default `blas` under the user's cache folder.

    Raises:
        BackendError: a library was named and can't be used.
    """
    if not _is_linux_cpu_wheel():
        return BlasReport(identity="", is_fast=True)
    if setting not in ("auto", "none") and open_library(setting) is None:
        raise BackendError(f"--blas {setting}: not a BLAS library with cblas_sgemm. Name another, or use --blas auto.")
    loaded = _already_loaded()
    if loaded:
        return BlasReport(identity=loaded, is_fast=True)
    if setting == "none":
        return BlasReport(identity="reference", is_fast=False)
    if "mlx.core" in sys.modules:
        notice = "MLX was imported before Phyla could load a fast BLAS, so products are slow: call phyla.load first."
        return BlasReport(identity="reference", is_fast=False, notice=notice)
    library = next(installed_libraries(), None) if setting == "auto" else open_library(setting)
    if library is None:
        return BlasReport("reference", is_fast=False, notice=f"No fast BLAS found, so products are slow: {REMEDY}.")
    return _put_in_front(library, threads or usable_cpus(), folder)


def usable_cpus() -> int:
    """CPUs this process may use: its affinity, cut to the control group's quota."""
    num_cpus = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            num_cpus = min(num_cpus, max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):
        pass
    return num_cpus


def _is_linux_cpu_wheel() -> bool:
    if sys.platform != "linux":
        return False
    try:
        importlib.metadata.distribution("mlx-cpu")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _already_loaded() -> str:
    """The description inside a shim that this process loaded earlier; empty if there is none."""
    try:
        describe = ctypes.CDLL(None).phyla_blas_description
    except AttributeError:
        return ""
    describe.restype = ctypes.c_char_p
    found = describe()
    return found.decode() if isinstance(found, bytes) else ""


def _put_in_front(library: BlasLibrary, num_threads: int, folder: Path | None) -> BlasReport:
    version = library.version()
    shim = built_shim(library.naming.integer, folder)
    if shim is None:
        if library.naming.prefix or library.naming.suffix:
            return BlasReport(
                "reference", is_fast=False, notice=f"No C compiler found, so products are slow: {REMEDY}."
            )
        # The library has the very names that MLX asks for. Without the shim its one-row products still pack weights.
        library.fix_threads(num_threads)
        ctypes.CDLL(library.path, mode=ctypes.RTLD_GLOBAL)
        notice = "No C compiler found: decoding is slower than it could be."
        return BlasReport(f"{version}, {num_threads} threads, no shim", is_fast=True, notice=notice)
    library.fix_threads(1)
    front = ctypes.CDLL(str(shim), mode=ctypes.RTLD_GLOBAL)
    lanes = front.phyla_blas_set_lanes(MOST_LANES)
    # The shim's key too: how it sums and cuts products decides bits.
    identity = f"{version}, {num_threads} threads, {shim.stem[:13]}, {lanes} lanes"
    front.phyla_blas_bind.argtypes = [ctypes.c_void_p] * len(FUNCTIONS) + [ctypes.c_char_p, ctypes.c_int]
    front.phyla_blas_bind.restype = ctypes.c_int
    front.phyla_blas_bind(*(library.address(function) for function in FUNCTIONS), identity.encode(), num_threads)
    return BlasReport(identity, is_fast=True)


def built_shim(integer: str, folder: Path | None) -> Path | None:
    """The shim's file, compiled if this source was never compiled here; None without a working compiler."""
    flags = ["-O2", "-pthread", "-shared", "-fPIC", f"-DPHYLA_BLAS_INT={integer}"]
    sources = [path.read_bytes() for path in sorted(SHIM_SOURCES.glob("*.[ch]"))]
    facts = [*sources, " ".join(flags).encode(), platform.machine().encode()]
    home = folder if folder is not None else private_folder("blas")
    path = home / f"shim-{hashlib.sha256(bytes(1).join(facts)).hexdigest()[:32]}.so"
    if is_private_file(path):
        return path
    compiler = next((found for found in map(shutil.which, COMPILERS) if found), None)
    if compiler is None:
        return None
    descriptor, building = tempfile.mkstemp(suffix=".so", dir=home)
    os.close(descriptor)
    try:
        command = [compiler, *flags, "-o", building, str(SHIM_SOURCES / "shim.c")]
        finished = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        if finished.returncode != 0:
            return None
        # Renamed when complete: another process sees a whole library or none, and both builds are the same.
        Path(building).chmod(0o700)
        Path(building).replace(path)
    finally:
        Path(building).unlink(missing_ok=True)
    return path
