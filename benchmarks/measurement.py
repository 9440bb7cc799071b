"""Where the scripts' result files go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from phyla.cli.bench.record import interval_95, machine, versions

__all__ = ["RESULTS", "interval_95", "machine", "versions", "write_result"]

RESULTS = Path(__file__).parent / "results"


def write_result(name: str, arguments: str, result: dict[str, Any], suffix: str = "") -> None:
    """Write `results/<name>.json`, or `<name>_<suffix>.json`, with the command that makes it again."""
    command = f"python -m benchmarks.{name} {arguments}".strip()
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / (f"{name}_{suffix}.json" if suffix else f"{name}.json")
    path.write_text(json.dumps({"command": command, "machine": machine(), **result}, indent=2) + "\n")
    print(f"wrote {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")
