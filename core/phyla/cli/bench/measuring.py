"""Cases measured in pairs: sides go by turns, and who is first changes: a machine that slows down favours neither."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from phyla.cli.bench.cases import Case
from phyla.cli.bench.contenders import OURS, Contender
from phyla.cli.bench.prompts import PromptMaker
from phyla.cli.bench.record import interval_95
from phyla.cli.bench.window import NUM_WARM, Window
from phyla.errors import UsageError

NUM_SPARE = 1024
"""Tokens that a row may run on while the others of its case begin, where its context has room for them."""

NUM_ATTEMPTS = 3
"""A machine that stops for a moment between two requests lets the first one run on alone; again, then."""


@dataclass(frozen=True)
class Effort:
    """How long and how often."""

    num_tokens: int = 64
    """Decoded and counted, of each row, in each sample."""

    num_pairs: int = 10
    most_seconds: float = 60.0
    """Of one case: no pair is begun after it, and none counts tokens for longer."""


@dataclass(frozen=True)
class Bound:
    """What a step has to read at least."""

    bytes_per_second: float
    weight_bytes: int
    row_bytes: Callable[[int], int]
    """Stored by a row of so many tokens."""

    def steps_per_second(self, case: Case) -> float:
        """No step can be faster than reading all weights once, and all that its rows have stored."""
        return self.bytes_per_second / (self.weight_bytes + sum(map(self.row_bytes, case.stored)))


def least_tokens(case: Case, effort: Effort) -> int:
    """Tokens that each row of the case comes to at least, prompt included."""
    return max(case.stored) + (1 if case.kind == "pp" else NUM_WARM + effort.num_tokens)


def row_cap(case: Case, effort: Effort, context_limit: int) -> int:
    """Most tokens that a row of the case is given; it's cancelled long before, as a rule."""
    if case.kind == "pp":
        return 1
    return min(NUM_WARM + effort.num_tokens + NUM_SPARE, context_limit - max(case.stored))


def measure_case(
    case: Case,
    sides: Sequence[Contender],
    prompts: PromptMaker,
    effort: Effort,
    bound: Bound | None,
    context_limit: int,
    now: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:
    """Run the case until its pairs or its seconds are used up.

    Returns:
        JSON values: for each side its mean rate, interval and peak memory; the ratio of ours to the other one with its
        interval; every sample.

    Raises:
        UsageError: rows ended before they all ran together.
        GenerationFailed: a row failed.
    """
    began = now()
    for side in sides:
        _sample(case, side, prompts, effort, context_limit, 0)
    before = {side.name: side.drafting() for side in sides}
    samples: list[dict[str, Any]] = []
    while len(samples) < effort.num_pairs and (not samples or now() - began < effort.most_seconds):
        number = len(samples) + 1
        order = sides if number % 2 else sides[::-1]
        taken = {side.name: _whole_sample(case, side, prompts, effort, context_limit, number) for side in order}
        samples.append({side.name: taken[side.name] for side in sides})
    return {
        "case": case.name,
        "kind": case.kind,
        "route": case.route,
        "rows": case.num_rows,
        "seconds": round(now() - began, 2),
        "pairs": len(samples),
        "sides": {
            side.name: _summary(case, side, samples, bound) | _drafted(before[side.name], side.drafting())
            for side in sides
        },
        **_compared(samples, sides),
        "samples": samples,
    }


def _whole_sample(
    case: Case, side: Contender, prompts: PromptMaker, effort: Effort, context_limit: int, number: int
) -> dict[str, float]:
    for _ in range(NUM_ATTEMPTS):
        sample = _sample(case, side, prompts, effort, context_limit, number)
        if sample is not None:
            return sample
    raise UsageError(
        f"{case.name}: some rows had ended before the last one began, so that they never all ran together. Give "
        "--tokens more, or leave the model more room behind what is stored."
    )


def _sample(
    case: Case, side: Contender, prompts: PromptMaker, effort: Effort, context_limit: int, number: int
) -> dict[str, float] | None:
    """None if the rows ended before they all ran together."""
    num_tokens = 0 if case.kind == "pp" else effort.num_tokens
    window = Window(case.num_rows, num_tokens, effort.most_seconds)
    mx.reset_peak_memory()
    held = mx.get_active_memory()
    side.run(prompts.prompts(case, number), row_cap(case, effort, context_limit), window, is_fresh=case.kind == "pp")
    if not window.is_over:
        return None
    rate = sum(case.stored) / window.first_seconds if case.kind == "pp" else window.tokens_per_second
    return {
        "tokens_per_second": round(rate, 3),
        "first_token_seconds": round(window.first_seconds, 5),
        "peak_bytes": mx.get_peak_memory(),
        "peak_bytes_above_idle": max(mx.get_peak_memory() - held, 0),
    }


def _summary(case: Case, side: Contender, samples: Sequence[Mapping[str, Any]], bound: Bound | None) -> dict[str, Any]:
    own = [sample[side.name] for sample in samples]
    rates = [one["tokens_per_second"] for one in own]
    mean = statistics.fmean(rates)
    summary: dict[str, Any] = {
        "tokens_per_second": round(mean, 2),
        "tokens_per_second_interval_95": [round(edge, 2) for edge in interval_95(rates)],
        "peak_bytes": max(one["peak_bytes"] for one in own),
        "peak_bytes_above_idle": max(one["peak_bytes_above_idle"] for one in own),
    }
    if bound is not None and case.kind == "tg" and side.name == OURS:
        summary["bandwidth_share"] = round(mean / case.num_rows / bound.steps_per_second(case), 4)
    return summary


def _drafted(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> dict[str, Any]:
    """Acceptance of what the samples drafted; nothing where nothing drafts."""
    if before is None or after is None:
        return {}
    drafted, accepted, calls = (after[key] - before[key] for key in ("drafted", "accepted", "target_calls"))
    return {
        "speculation": {
            "method": after["method"],
            "drafted": drafted,
            "accepted": accepted,
            "target_calls": calls,
            "acceptance": round(accepted / drafted, 4) if drafted else 0.0,
        }
    }


def _compared(samples: Sequence[Mapping[str, Any]], sides: Sequence[Contender]) -> dict[str, Any]:
    other = next((side.name for side in sides if side.name != OURS), None)
    if other is None:
        return {}
    ratios = [sample[OURS]["tokens_per_second"] / sample[other]["tokens_per_second"] for sample in samples]
    return {
        "against": other,
        "ratio": round(statistics.fmean(ratios), 3),
        "ratio_interval_95": [round(edge, 3) for edge in interval_95(ratios)],
    }
