"""The figures of a load, by the names and formulas of vLLM's serving benchmark, so that the two can be compared."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from phyla.cli.bench.load import Answered
from phyla.errors import UsageError

GOALS = ("ttft", "tpot", "e2el")
PERCENTILES = (50, 90, 95, 99)


def parse_goodput(words: Sequence[str]) -> dict[str, float]:
    """Goals in milliseconds, from `ttft:200`, `tpot:50` or `e2el:2000`; several may stand in one word with spaces.

    Raises:
        UsageError: another name, or no positive number of milliseconds.
    """
    goals = {}
    for word in " ".join(words).split():
        name, _, value = word.partition(":")
        if name not in GOALS:
            raise UsageError(f"--goodput {word}: goals are {', '.join(f'{one}:MILLISECONDS' for one in GOALS)}.")
        try:
            goals[name] = float(value)
        except ValueError:
            raise UsageError(f"--goodput {word}: '{value}' isn't a number of milliseconds.") from None
        if not goals[name] > 0:
            raise UsageError(f"--goodput {word}: a goal is more than 0 milliseconds.")
    return goals


def serve_metrics(answers: Sequence[Answered], duration: float, goals: Mapping[str, float]) -> dict[str, Any]:
    """Throughput, and the spread of times over the requests that were answered.

    Args:
        answers: of all requests.
        duration: seconds from the first sending to the last end.
        goals: milliseconds that a good request stays within; empty counts no good ones.

    Returns:
        JSON values. `ttft`: to the first text. `tpot`: per token after it, of requests with more than one. `itl`:
        between pieces of text, which may hold several tokens, over all requests. `e2el`: to the last text.

    Source:
        vLLM, `benchmarks/serve.py`, `calculate_metrics`.
    """
    good = [one for one in answers if one.error is None]
    num_input, num_output = sum(one.num_input for one in good), sum(one.num_output for one in good)
    result: dict[str, Any] = {
        "duration": duration,
        "completed": len(good),
        "failed": len(answers) - len(good),
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "request_throughput": len(good) / duration,
        "request_goodput": sum(_meets(one, goals) for one in good) / duration if goals else None,
        "output_throughput": num_output / duration,
        "total_token_throughput": (num_input + num_output) / duration,
    }
    result |= _spread("ttft", [one.ttft for one in good])
    result |= _spread("tpot", [tpot(one) for one in good if one.num_output > 1])
    result |= _spread("itl", [gap for one in good for gap in one.gaps])
    result |= _spread("e2el", [one.latency for one in good])
    return result


def tpot(one: Answered) -> float:
    """Seconds per token after the first; 0 where there is none."""
    return (one.latency - one.ttft) / (one.num_output - 1) if one.num_output > 1 else 0.0


def percentile(values: Sequence[float], percent: float) -> float:
    """With linear interpolation between the two nearest, as numpy's default."""
    ordered = sorted(values)
    at = (len(ordered) - 1) * percent / 100
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


def _spread(name: str, seconds: Sequence[float]) -> dict[str, float]:
    """In milliseconds; zeros where there is nothing to spread."""
    values = [1000 * one for one in seconds] or [0.0]
    spread = {
        f"mean_{name}_ms": statistics.fmean(values),
        f"median_{name}_ms": statistics.median(values),
        f"std_{name}_ms": statistics.pstdev(values),
    }
    return spread | {f"p{percent}_{name}_ms": percentile(values, percent) for percent in PERCENTILES}


def _meets(one: Answered, goals: Mapping[str, float]) -> bool:
    taken = {"ttft": one.ttft, "tpot": tpot(one), "e2el": one.latency}
    return all(1000 * taken[name] <= most for name, most in goals.items())
