"""Tables of what `grammar_cost` measured, one row per engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Result = dict[str, Any]

PERCENTILES = ("p50", "p99", "p99.9", "most")


def grammar_cost(result: Result) -> str:
    """Of the part that the result is of."""
    return PARTS[result["part"]](result)


def masks(result: Result) -> str:
    rows = ["| microseconds per mask | p50 | p99 | p99.9 | most | masks |", "| --- | --- | --- | --- | --- | --- |"]
    for engine, found in result["engines"].items():
        cells = [str(round(found["microseconds"][name])) for name in PERCENTILES]
        rows.append(f"| {engine} | {' | '.join(cells)} | {found['masks']} |")
    return "\n".join(rows)


def first_mask(result: Result) -> str:
    rows = ["| milliseconds to the first mask | p50 | most |", "| --- | --- | --- |"]
    for engine, found in result["engines"].items():
        taken = found["milliseconds"]
        rows.append(f"| {engine} | {taken['p50']} | {taken['most']} |")
    return "\n".join(rows)


def overhead(result: Result) -> str:
    rows = ["| | a token with a schema takes longer by (95% interval) |", "| --- | --- |"]
    for engine, found in result["engines"].items():
        low, high = found["overhead_percent"]["interval_95"]
        rows.append(f"| {engine} | {found['overhead_percent']['mean']}% ({low} to {high}) |")
    return "\n".join(rows)


def company(result: Result) -> str:
    rows = ["| time between tokens, in company against alone | p50 | p99 |", "| --- | --- | --- |"]
    for engine, found in result["engines"].items():
        for kind, ratios in found["ratios"].items():
            cells = (f"{one['mean']}x ({one['interval_95'][0]} to {one['interval_95'][1]})" for one in ratios.values())
            rows.append(f"| {engine}, {kind} | {' | '.join(cells)} |")
    return "\n".join(rows)


PARTS: dict[str, Callable[[Result], str]] = {
    "masks": masks,
    "first_mask": first_mask,
    "decode": overhead,
    "company": company,
}
