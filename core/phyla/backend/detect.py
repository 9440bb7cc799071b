"""Looking at the machine, once, before a model is chosen: imports mlx, with a fast BLAS in front where one helps."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from phyla.backend.blas import load_fast_blas
from phyla.backend.compile_folder import use_private_compile_folder
from phyla.backend.device import BackendFacts
from phyla.errors import BackendError

CPU_SHARE = 0.8
"""Of main memory, for weights and caches; the rest is for the system and for a step's workspace."""

CUDA_SHARE = 0.9

SUPPLIERS = ("mlx-cpu", "mlx-cuda-12", "mlx-cuda-13")
"""Distributions that each bring `mlx/lib/libmlx.so`: two of them overwrite each other's."""


def detect(blas: str = "auto", blas_threads: int | None = None) -> BackendFacts:
    """Facts of this process's device. Safe to call again; the BLAS of the first call stands.

    Args:
        blas: `auto`, `none` or the path of a library; see `load_fast_blas`.
        blas_threads: threads of one matrix product on a CPU; by default the CPUs this process may use.

    Raises:
        BackendError: mlx can't be imported, or the named BLAS can't be used; the message has the remedy.
    """
    report = load_fast_blas(blas, blas_threads)
    if report.identity and "mlx.core" not in sys.modules:
        use_private_compile_folder()
    mx = import_mlx()
    facts = mx.device_info()
    on_gpu = mx.default_device().type == mx.DeviceType.gpu
    name = str(facts.get("device_name") or facts.get("architecture") or "unknown")
    if on_gpu and sys.platform == "darwin":
        memory = int(facts.get("memory_size", 0)) or main_memory_bytes()
        working_set = int(facts.get("max_recommended_working_set_size", 0)) or int(memory * CPU_SHARE)
        return BackendFacts("metal", name, mx.__version__, memory, working_set)
    if on_gpu:
        memory = _cuda_memory_bytes(facts)
        return BackendFacts("cuda", name, mx.__version__, memory, int(memory * CUDA_SHARE))
    notices = (report.notice,) if report.notice else ()
    memory = main_memory_bytes()
    return BackendFacts(
        "cpu", name, mx.__version__, memory, int(memory * CPU_SHARE), blas=report.identity, notices=notices
    )


def import_mlx() -> ModuleType:
    """Import `mlx.core`.

    Raises:
        BackendError: it has no library here; names the extra to install.
    """
    try:
        import mlx.core as mx
    except ImportError as error:
        raise BackendError(f"MLX can't be imported: {error}. {remedy(installed_suppliers())}") from error
    return mx


def installed_suppliers() -> tuple[str, ...]:
    """Which distributions of MLX's library are installed; more than one is a broken installation."""
    found = []
    for name in SUPPLIERS:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return tuple(found)


def remedy(suppliers: tuple[str, ...]) -> str:
    """What to install so that mlx can be imported on this machine."""
    if sys.platform == "darwin":
        return "Install it again: pip install --force-reinstall mlx (macOS 14 or later on Apple silicon)."
    if len(suppliers) > 1:
        names = " ".join(one.split()[0] for one in suppliers)
        return (
            f"{' and '.join(suppliers)} overwrite each other's library: pip uninstall {names}, "
            "then install one again: pip install --force-reinstall 'phyla[cpu]' or 'phyla[cuda]'."
        )
    return "On Linux mlx needs its CPU or CUDA library: pip install 'phyla[cpu]', or 'phyla[cuda]' for an NVIDIA GPU."


def main_memory_bytes() -> int:
    """Main memory of the machine, cut to what the control group allows."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total


def _cuda_memory_bytes(facts: Mapping[str, object]) -> int:
    for key in ("total_memory", "memory_size"):
        value = facts.get(key)
        if isinstance(value, int) and value > 0:
            return value
    raise BackendError(f"MLX doesn't say how much memory the CUDA device has; it reports {sorted(facts)}.")
