"""Many clients at once: the aggregate against one at a time, what a long prompt does to a running row, and a cancel.

All of it in one process over the library, so that nothing but the engine is measured.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import threading
import time
from collections.abc import Sequence
from typing import Any

import phyla
from phyla.request import Finished

from benchmarks.measurement import interval_95, versions, write_result

PROMPTS = (
    "Explain how rain forms.",
    "Write a short poem about a river.",
    "What is the capital of France?",
    "List three uses of copper.",
    "How do bees make honey?",
    "Describe a sunset.",
    "Why is the sky blue?",
    "Name five fruits.",
)
NUM_TOKENS = 48
NUM_UNDISTURBED = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="folder or file, the starter for the checked-in numbers")
    parser.add_argument("--pairs", type=int, default=10, help="runs of one at a time and of all at once, by turns")
    parser.add_argument("--long-prompt", type=int, default=3000, help="tokens of the disturbing prompt")
    arguments = parser.parse_args()
    with phyla.load(arguments.model, batch=len(PROMPTS)) as model:
        model.generate("warm up", max_tokens=8)
        pairs = [{"serial": serial(model), "together": together(model)} for _ in range(arguments.pairs)]
        gaps = under_prefill(model, arguments.long_prompt)
        cancel_seconds = [cancelled(model, arguments.long_prompt) for _ in range(3)]
        company_seconds = [cancelled_in_company(model, arguments.long_prompt) for _ in range(3)]
    ratios = [one["together"] / one["serial"] for one in pairs]
    low, high = interval_95(ratios)
    result = {
        "versions": versions("phyla", "mlx"),
        "num_clients": len(PROMPTS),
        "num_tokens": NUM_TOKENS,
        "long_prompt_tokens": arguments.long_prompt,
        "summary": {
            "serial_tokens_per_second": round(statistics.fmean(one["serial"] for one in pairs), 2),
            "together_tokens_per_second": round(statistics.fmean(one["together"] for one in pairs), 2),
            "ratio": round(statistics.fmean(ratios), 2),
            "ratio_interval_95": [round(low, 2), round(high, 2)],
            "pairs": len(pairs),
            "gap_ms_undisturbed": percentiles(gaps["undisturbed"]),
            "gap_ms_under_prefill": percentiles(gaps["under_prefill"]),
            "cancel_in_prefill_ms": round(1000 * max(cancel_seconds), 1),
            "cancel_in_company_ms": round(1000 * max(company_seconds), 1),
        },
        "samples": pairs,
    }
    write_result("concurrency", f"MODEL --pairs {arguments.pairs}", result)


def serial(model: phyla.Model) -> float:
    """Tokens per second of two prompts, one after the other."""
    began = time.perf_counter()
    for prompt in PROMPTS[:2]:
        answer(model, prompt)
    return 2 * NUM_TOKENS / (time.perf_counter() - began)


def together(model: phyla.Model) -> float:
    """Tokens per second of all prompts at once."""
    began = time.perf_counter()
    clients = [threading.Thread(target=answer, args=(model, prompt)) for prompt in PROMPTS]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    return len(PROMPTS) * NUM_TOKENS / (time.perf_counter() - began)


def under_prefill(model: phyla.Model, num_prompt: int) -> dict[str, list[float]]:
    """Seconds between tokens of a running row: alone, then while a long prompt is read."""
    arrivals: list[float] = []
    is_read = threading.Event()
    began: list[float] = []

    def read_long() -> None:
        began.append(time.perf_counter())
        model.generate(long_prompt(num_prompt), max_tokens=1)
        is_read.set()

    disturber = threading.Thread(target=read_long)
    for piece in model.stream("Once upon a time", max_tokens=1500, ignore_eos=True):
        arrivals.append(time.perf_counter())
        if len(arrivals) == NUM_UNDISTURBED:
            disturber.start()
        if is_read.is_set() or piece.finish_reason:
            break
    disturber.join()
    gaps = [(before, after - before) for before, after in itertools.pairwise(arrivals)]
    return {
        "undisturbed": [gap for at, gap in gaps[2:] if at < began[0]],
        "under_prefill": [gap for at, gap in gaps if at >= began[0]],
    }


def cancelled(model: phyla.Model, num_prompt: int) -> float:
    """Seconds from cancelling a lone prompt in the middle of its prefill to its last event."""
    ended = threading.Event()
    # A name of its own each time: events of an earlier one may still be on their way.
    request = phyla.Request(
        f"to-cancel-{time.monotonic_ns()}", phyla.Rendered(tuple(long_prompt(num_prompt))), max_tokens=1
    )

    def hear(events: Sequence[Any]) -> None:
        if any(event.request_id == request.request_id and isinstance(event, Finished) for event in events):
            ended.set()

    forget = model.engine.subscribe(hear)
    model.engine.submit(request)
    time.sleep(1.0)
    began = time.perf_counter()
    model.engine.cancel(request.request_id)
    ended.wait()
    forget()
    return time.perf_counter() - began


def cancelled_in_company(model: phyla.Model, num_prompt: int) -> float:
    """As `cancelled`, while another row decodes."""
    is_over = threading.Event()

    def run() -> None:
        for _ in model.stream("Once upon a time", max_tokens=1500, ignore_eos=True):
            if is_over.is_set():
                break

    neighbour = threading.Thread(target=run)
    neighbour.start()
    seconds = cancelled(model, num_prompt)
    is_over.set()
    neighbour.join()
    return seconds


def answer(model: phyla.Model, prompt: str) -> None:
    model.chat([{"role": "user", "content": prompt}], max_tokens=NUM_TOKENS, ignore_eos=True)


def long_prompt(num_tokens: int) -> list[int]:
    """Ids that no prefix can be reused of."""
    return [random.randrange(1000, 40_000) for _ in range(num_tokens)]


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(1000 * one for one in seconds)
    return {"p50": round(ordered[len(ordered) // 2], 1), "p99": round(ordered[int(0.99 * (len(ordered) - 1))], 1)}


if __name__ == "__main__":
    main()
