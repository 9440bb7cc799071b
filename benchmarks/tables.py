"""The measured tables of the docs, made from the result files: `python -m benchmarks.tables` writes them in place."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measurement import RESULTS

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/benchmarks.md")

Result = dict[str, Any]


def main() -> None:
    for page in PAGES:
        path = ROOT / page
        path.write_text(filled(path.read_text()))


def filled(text: str) -> str:
    """The page with every marked table made anew.

    A mark is `<!-- measured: NAME -->`; its table goes on to the next `<!-- end -->`.
    """

    def table(mark: re.Match[str]) -> str:
        name = mark[1]
        result = json.loads((RESULTS / f"{name}.json").read_text())
        return f"<!-- measured: {name} -->\n{TABLES[name](result)}\n<!-- end -->"

    return re.sub(r"<!-- measured: (\w+) -->.*?<!-- end -->", table, text, flags=re.DOTALL)


def starter_vs_mlx_lm(result: Result) -> str:
    rows = ["| | Phyla | mlx-lm | ratio (95% interval) |", "| --- | --- | --- | --- |"]
    for phase, tokens in (("prefill", result["num_prompt_tokens"]), ("decode", result["num_decoded"])):
        one = result["summary"][phase]
        low, high = one["ratio_interval_95"]
        rows.append(
            f"| {phase}, {tokens} tokens | {one['phyla_tokens_per_second']} tok/s "
            f"| {one['mlx_lm_tokens_per_second']} tok/s | {one['ratio']}x ({low} to {high}) |"
        )
    return "\n".join([*rows, "", where(result)])


def server_cost(result: Result) -> str:
    rows = [
        "| clients | library | server, streamed | added by HTTP per token and client (95% interval) |",
        "| --- | --- | --- | --- |",
    ]
    for clients, one in result["summary"].items():
        low, high = one["added_interval_95"]
        rows.append(
            f"| {clients} | {one['library_ms_per_token']} ms per token | {one['server_ms_per_token']} ms per token "
            f"| {one['added_ms_per_token']} ms ({low} to {high}) |"
        )
    first = result["first_frame"]
    sentence = (
        f"From sending a prompt of {first['num_prompt_tokens']} tokens to the first byte of its stream: "
        f"{first['median_ms']} ms (median), {first['worst_ms']} ms at worst."
    )
    return "\n".join([*rows, "", sentence, "", where(result)])


def where(result: Result) -> str:
    """The line under a table: the command and the machine."""
    machine, versions = result["machine"], result["versions"]
    named = ", ".join(f"{name} {version}" for name, version in versions.items() if name != "python")
    return f"`{result['command']}` on {machine['cores']} cores of an {machine['processor']}; {named}."


TABLES: dict[str, Callable[[Result], str]] = {"starter_vs_mlx_lm": starter_vs_mlx_lm, "server_cost": server_cost}

if __name__ == "__main__":
    main()
