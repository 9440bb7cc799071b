"""The starter on the CPU against mlx-lm as it ships: prefill of 512 tokens, decode of 64, in alternating runs.

Both sides run the same weights: mlx-lm loads the starter's own 4-bit form, exported as safetensors without rounding
anything; Phyla loads the GGUF and decides for itself how to hold it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

from benchmarks.measurement import interval_95, versions, write_result
from benchmarks.starter_side import NUM_DECODED, NUM_PROMPT_TOKENS

PHASES = ("prefill", "decode")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10, help="paired runs")
    parser.add_argument("--model", default="starter", help="another GGUF file of the same size")
    options = parser.parse_args()
    pairs, reference = options.pairs, options.model
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder) / "model"
        subprocess.run([sys.executable, "-m", "benchmarks.starter_export", reference, str(exported)], check=True)
        sides = {"phyla": Side("phyla", reference), "mlx_lm": Side("mlx_lm", str(exported))}
        samples: list[dict[str, dict[str, float]]] = []
        for number in range(pairs):
            # Which side goes first changes: a machine that slows down must not favour one of them.
            order = list(sides) if number % 2 == 0 else list(reversed(sides))
            samples.append({name: sides[name].measure() for name in order})
            print(f"pair {number + 1}: {samples[-1]}", flush=True)
        for side in sides.values():
            side.close()
    result: dict[str, Any] = {
        "versions": versions("phyla", "mlx", "mlx-lm", "numpy"),
        "model": "SmolLM2-135M-Instruct, Q4_1 (the starter)",
        "num_prompt_tokens": NUM_PROMPT_TOKENS,
        "num_decoded": NUM_DECODED,
        "summary": {phase: summary(samples, phase) for phase in PHASES},
        "samples": samples,
    }
    write_result("starter_vs_mlx_lm", f"--pairs {pairs}", result)


class Side:
    """One side's process; asleep while the other one is measured."""

    def __init__(self, name: str, reference: str) -> None:
        command = [sys.executable, "-m", "benchmarks.starter_side", name, reference]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._answer() == "ready"

    def measure(self) -> dict[str, float]:
        """Tokens per second by phase."""
        requests: IO[str] | None = self._process.stdin
        assert requests is not None
        requests.write("measure\n")
        requests.flush()
        measured: dict[str, float] = json.loads(self._answer())
        return measured

    def close(self) -> None:
        self._process.communicate(timeout=60)

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the side's process ended early"
        return line.strip()


def summary(samples: list[dict[str, dict[str, float]]], phase: str) -> dict[str, Any]:
    ratios = [sample["phyla"][phase] / sample["mlx_lm"][phase] for sample in samples]
    low, high = interval_95(ratios)
    return {
        "phyla_tokens_per_second": round(statistics.fmean(one["phyla"][phase] for one in samples), 1),
        "mlx_lm_tokens_per_second": round(statistics.fmean(one["mlx_lm"][phase] for one in samples), 1),
        "ratio": round(statistics.fmean(ratios), 2),
        "ratio_interval_95": [round(low, 2), round(high, 2)],
        "pairs": len(samples),
    }


if __name__ == "__main__":
    main()
