"""Tables of what `phyla bench` wrote."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from phyla.cli.bench.cases import Case

Result = dict[str, Any]


def engine_rows(result: Result) -> list[str]:
    """A line for each case; columns that no case has are left out."""
    cases: Sequence[Mapping[str, Any]] = result["cases"]
    other = next((case["against"] for case in cases if "against" in case), None)
    has_share = any("bandwidth_share" in case["sides"]["phyla"] for case in cases)
    head = [
        "",
        "Phyla",
        *([other, "ratio (95% interval)"] if other else []),
        *(["of the bandwidth"] if has_share else []),
    ]
    rows = [_line(head), _line(["---"] * len(head))]
    for case in cases:
        cells = [in_words(Case.parse(case["case"])), _rate(case["sides"]["phyla"])]
        if other:
            cells += [_rate(case["sides"][other]), f"{case['ratio']:.2f}x ({_interval(case)})"]
        if has_share:
            share = case["sides"]["phyla"].get("bandwidth_share")
            cells.append("" if share is None else f"{share:.0%}")
        rows.append(_line(cells))
    return rows


def serve_rows(result: Result) -> list[str]:
    """Throughputs in a sentence, times in a table."""
    head = ["", "mean", "median", "p90", "p99"]
    names = {"ttft": "first text", "tpot": "per token after it", "itl": "between pieces", "e2el": "whole answer"}
    rows = [_line(head), _line(["---"] * len(head))]
    for name, meaning in names.items():
        times = [f"{result[f'{spread}_{name}_ms']:.1f} ms" for spread in head[1:]]
        rows.append(_line([meaning, *times]))
    rate = f"{result['output_throughput']:.1f} output tokens a second"
    sentence = (
        f"{result['completed']} requests, {result['request_throughput']:.2f} a second: {rate}, "
        f"{result['total_token_throughput']:.1f} with the prompts."
    )
    return [*rows, "", sentence]


def in_words(case: Case) -> str:
    """A case as a reader of a table wants it."""
    runs = [(tokens, len(list(same))) for tokens, same in itertools.groupby(case.stored)]
    verb = "read" if case.kind == "pp" else "behind"
    parts = [f"{count} row{'s' if count > 1 else ''} {verb} {tokens}" for tokens, count in runs]
    return f"{' and '.join(parts)}{'' if case.route is None else f', {case.route}'}"


def _rate(side: Mapping[str, Any]) -> str:
    return f"{side['tokens_per_second']:.0f} tok/s"


def _line(cells: Sequence[str]) -> str:
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


def _interval(case: Mapping[str, Any]) -> str:
    """One pair has no spread that could tell how far its ratio may be off."""
    if case["pairs"] < 2:
        return "one pair"
    low, high = case["ratio_interval_95"]
    return f"{low:.2f} to {high:.2f}"
