"""What every result holds beside its samples: where it was made, with what, and how sure its ratios are."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shlex
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import rich_click as click

from phyla.backend.blas import usable_cpus
from phyla.errors import UsageError

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
        "cores": usable_cpus(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
    }


def versions(*distributions: str) -> dict[str, str]:
    """Of Python and of these."""
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in distributions}


def shown_command(otherwise: Sequence[str], model: str | None) -> str:
    """The command line of this process, without the folders of this machine.

    Args:
        otherwise: what to show if the process is another program that runs the command: the words after `phyla bench`.
        model: as the command was given it; a path is shown as MODEL.
    """
    words = sys.argv[1:] if sys.argv[1:2] == ["bench"] else ["bench", *otherwise]
    return shlex.join(["phyla", *("MODEL" if word == model and "/" in word else _shown(word) for word in words)])


def check_output(output: Path | None) -> None:
    """Before minutes are spent on what can't be kept.

    Raises:
        UsageError: the folder of the file doesn't exist, or the file is one.
    """
    if output is not None and (output.is_dir() or not output.absolute().parent.is_dir()):
        raise UsageError(f"--output {output} can't be written: name a file in a folder that exists.")


def emit(result: dict[str, Any], output: Path | None, *, is_quiet: bool = False) -> None:
    """Print the result as JSON, or write it to the file and say so."""
    written = json.dumps(result, indent=2)
    if output is None:
        click.echo(written)
        return
    output.write_text(written + "\n", "utf-8")
    if not is_quiet:
        click.echo(f"Wrote {output}.", err=True)


def _shown(word: str) -> str:
    name, equals, value = word.partition("=")
    if equals and "/" in value:
        return f"{name}={Path(value).name}"
    return Path(word).name if "/" in word and "://" not in word else word


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
