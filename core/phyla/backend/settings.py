"""The `[backend]` section: what MLX computes with."""

from __future__ import annotations

from phyla.settings import PluginSettings, setting


class BackendSettings(PluginSettings, section="backend"):
    """Only read on a Linux CPU; the bits of results depend on both, so they are part of the numerical identity."""

    blas: str = setting("auto", flag="--blas", metavar="auto|none|PATH")
    """Library for matrix products on a Linux CPU: `auto` finds one, `none` keeps MLX's own slow one."""

    blas_threads: int | None = setting(None, flag="--blas-threads", ge=1, le=1024)
    """Threads of one matrix product; by default as many as the process may use CPUs."""
