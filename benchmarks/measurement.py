"""What every result file holds besides its samples."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"

# Two-sided 95% points of Student's t by degrees of freedom.
T_95 = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 14: 2.145, 19: 2.093}


def interval_95(samples: Sequence[float]) -> tuple[float, float]:
    """The 95% confidence interval of the mean; one sample gives itself."""
    mean = statistics.fmean(samples)
    freedom = len(samples) - 1
    if freedom < 1:
        return mean, mean
    points = T_95[max(known for known in T_95 if known <= freedom)]
    half = points * statistics.stdev(samples) / len(samples) ** 0.5
    return mean - half, mean + half


def machine() -> dict[str, Any]:
    """The machine as far as it matters for a speed."""
    return {
        "system": platform.system(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
    }


def versions(*distributions: str) -> dict[str, str]:
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in distributions}


def write_result(name: str, arguments: str, result: dict[str, Any], suffix: str = "") -> None:
    """Write `results/<name>.json`, or `<name>_<suffix>.json`, with the command that makes it again."""
    command = f"python -m benchmarks.{name} {arguments}".strip()
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / (f"{name}_{suffix}.json" if suffix else f"{name}.json")
    path.write_text(json.dumps({"command": command, "machine": machine(), **result}, indent=2) + "\n")
    print(f"wrote {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
