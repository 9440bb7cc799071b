"""What each KV scheme does to the starter's predictions: `phyla bench kv` over a text of this folder."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from benchmarks.measurement import versions, write_result

TEXT = Path(__file__).parent / "kv_quality.txt"
"""Prose of this project's own pages as they were when it was written."""

# Affine storage with its fused form: the same codes, and affordable on a CPU.
SPECS = (
    "affine:8+fused",
    "affine:4+fused",
    *(f"turboquant:{bits}" for bits in ("k8v8", "k8v4", "k8v3", "k8v2", "k5v3", "k4v3", "k4v2", "k2v3")),
)


def main() -> None:
    from phyla.cli.bench.kv import QualityOptions, measure_kv_quality
    from phyla.plugins import discover
    from phyla.registry import ModelsSettings, fetch_starter
    from phyla.settings import load_settings

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=8192, help="how much of the text is read")
    options = parser.parse_args()
    manager = discover()
    settings = load_settings(manager.settings_sections(), env=os.environ)
    result = measure_kv_quality(
        str(fetch_starter(settings.section(ModelsSettings), print)),
        TEXT.read_text("utf-8"),
        SPECS,
        QualityOptions(options.tokens, progress=lambda num_read, num_tokens: print(num_read, "of", num_tokens)),
        manager,
        settings,
    )
    result["schemes"] = {name.removesuffix("+fused"): one for name, one in result["schemes"].items()}
    named = {
        "versions": versions("phyla", "mlx", "numpy"),
        **result,
        "model": "SmolLM2-135M-Instruct, Q4_1 (the starter)",
    }
    write_result("kv_quality", f"--tokens {options.tokens}", named)


if __name__ == "__main__":
    main()
