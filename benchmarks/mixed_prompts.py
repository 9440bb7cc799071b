"""Prompts of very different lengths that arrive together, against the same ones in turn.

    python -m benchmarks.mixed_prompts MODEL --pairs 10

The short ones mustn't wait for the long one, and all of them together mustn't take longer than one after the other.
"""

from __future__ import annotations

import argparse
import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import phyla

from benchmarks.measurement import interval_95, versions, write_result

LENGTHS = (3000, 500, 10)
NUM_TOKENS = 16
Timed = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder or file, the starter for the checked-in numbers")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=NUM_TOKENS, help="of each answer")
    arguments = parser.parse_args()
    samples = []
    with phyla.load(arguments.model, batch=8) as model:
        model.generate("warm up", max_tokens=8)
        for number in range(arguments.pairs):
            sides = (("in_turn", in_turn), ("together", together))
            samples.append(
                {
                    name: run(model, fresh(arguments.lengths), arguments.tokens)
                    for name, run in (sides if number % 2 else sides[::-1])
                }
            )
            print(samples[-1], flush=True)
    result = {"versions": versions("phyla", "mlx"), "num_tokens": arguments.tokens, "summary": summary(samples)}
    given = "" if tuple(arguments.lengths) == LENGTHS else f" --lengths {' '.join(map(str, arguments.lengths))}"
    write_result("mixed_prompts", f"MODEL --pairs {arguments.pairs}{given}", {**result, "samples": samples})


def summary(samples: Sequence[Timed]) -> dict[str, Any]:
    """A ratio above 1 is time saved."""
    ratios = [one["in_turn"]["seconds"] / one["together"]["seconds"] for one in samples]
    low, high = interval_95(ratios)
    first = zip(*(one["together"]["first_seconds"].items() for one in samples), strict=True)
    return {
        "in_turn_seconds": round(statistics.fmean(one["in_turn"]["seconds"] for one in samples), 2),
        "together_seconds": round(statistics.fmean(one["together"]["seconds"] for one in samples), 2),
        "ratio": round(statistics.fmean(ratios), 3),
        "ratio_interval_95": [round(low, 3), round(high, 3)],
        "first_token_seconds_together": {
            pairs[0][0]: round(statistics.fmean(seconds for _, seconds in pairs), 3) for pairs in first
        },
        "pairs": len(samples),
    }


def in_turn(model: phyla.Model, prompts: Sequence[list[int]], num_tokens: int) -> Timed:
    began = time.perf_counter()
    firsts = {str(len(prompt)): answer(model, prompt, num_tokens, began) for prompt in prompts}
    return timed(began, firsts)


def together(model: phyla.Model, prompts: Sequence[list[int]], num_tokens: int) -> Timed:
    firsts: dict[str, float] = {}

    def client(prompt: list[int]) -> Callable[[], None]:
        def run() -> None:
            firsts[str(len(prompt))] = answer(model, prompt, num_tokens, began)

        return run

    clients = [threading.Thread(target=client(prompt)) for prompt in prompts]
    began = time.perf_counter()
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    return timed(began, {str(len(prompt)): firsts[str(len(prompt))] for prompt in prompts})


def timed(began: float, firsts: dict[str, float]) -> Timed:
    return {"seconds": round(time.perf_counter() - began, 3), "first_seconds": firsts}


def answer(model: phyla.Model, prompt: list[int], num_tokens: int, began: float) -> float:
    """Read it all; when its first token came, after the start of all."""
    first = 0.0
    for piece in model.stream(prompt, max_tokens=num_tokens, ignore_eos=True):
        if piece.token_id is not None and not first:
            first = time.perf_counter() - began
    return round(first, 3)


def fresh(lengths: Sequence[int]) -> list[list[int]]:
    """Ids that no prefix can be reused of."""
    return [[random.randrange(1000, 40_000) for _ in range(length)] for length in lengths]


if __name__ == "__main__":
    main()
