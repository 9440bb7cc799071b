"""n-gram lookup on the starter, greedy, on real text: decode with it and without, in alternating runs.

One task copies: a paragraph is to be repeated with a word changed. The other is free: answers in the model's own words.
Both sides are one loaded model each, in this process, and answer the same prompts with the same tokens.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

import phyla

from benchmarks.measurement import interval_95, versions, write_result

NUM_DECODED = 64

PARAGRAPH = (
    "The library opens at nine in the morning and closes at six in the evening. Readers may borrow up to five books "
    "for three weeks. A book that nobody else has asked for can be renewed twice, at the desk or by telephone. Books "
    "that come back late cost ten cents a day. Newspapers, maps and dictionaries are for use in the reading room only."
)
TASKS = {
    "copy": [f"Repeat this text word for word, and change nothing but 'five books' into 'six books':\n\n{PARAGRAPH}"],
    "free": [
        "Explain in your own words why the sky is blue and why sunsets are red.",
        "Write a short story about a fisherman who finds a letter.",
        "What should I think of before I buy a used bicycle?",
    ],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10, help="paired runs")
    parser.add_argument("--model", default="starter", help="another model")
    options = parser.parse_args()
    with phyla.load(options.model) as plain, phyla.load(options.model, method="ngram") as drafting:
        sides = {"plain": plain, "ngram": drafting}
        samples = [one_pair(sides, number) for number in range(options.pairs)]
        accepted = {task: acceptance(drafting, prompts) for task, prompts in TASKS.items()}
    result: dict[str, Any] = {
        "versions": versions("phyla", "mlx", "numpy"),
        "model": "SmolLM2-135M-Instruct, Q4_1 (the starter)",
        "num_decoded": NUM_DECODED,
        "summary": {task: summary(samples, task) | accepted[task] for task in TASKS},
        "samples": samples,
    }
    write_result("ngram_starter", f"--pairs {options.pairs}", result)


def one_pair(sides: dict[str, phyla.Model], number: int) -> dict[str, dict[str, float]]:
    """Decoded tokens per second by task and side."""
    # Which side goes first changes: a machine that slows down must not favour one of them.
    order = list(sides) if number % 2 == 0 else list(reversed(sides))
    measured = {task: {name: decode_rate(sides[name], prompts) for name in order} for task, prompts in TASKS.items()}
    print(f"pair {number + 1}: {measured}", flush=True)
    return measured


def decode_rate(model: phyla.Model, prompts: Sequence[str]) -> float:
    usages = [answered(model, prompt).usage for prompt in prompts]
    return sum(one.num_completion_tokens - 1 for one in usages) / sum(one.decode_seconds for one in usages)


def acceptance(model: phyla.Model, prompts: Sequence[str]) -> dict[str, Any]:
    """Counts over all prompts."""
    reports = [answered(model, prompt).usage.speculation for prompt in prompts]
    counts = {name: sum(one[name] for one in reports) for name in ("drafted", "accepted", "targetCalls")}
    return {**counts, "tokensPerForward": round(NUM_DECODED * len(prompts) / counts["targetCalls"], 2)}


def answered(model: phyla.Model, prompt: str) -> Any:
    return model.chat([{"role": "user", "content": prompt}], max_tokens=NUM_DECODED, ignore_eos=True)


def summary(samples: list[dict[str, dict[str, float]]], task: str) -> dict[str, Any]:
    ratios = [sample[task]["ngram"] / sample[task]["plain"] for sample in samples]
    low, high = interval_95(ratios)
    return {
        "plain_tokens_per_second": round(statistics.fmean(one[task]["plain"] for one in samples), 1),
        "ngram_tokens_per_second": round(statistics.fmean(one[task]["ngram"] for one in samples), 1),
        "ratio": round(statistics.fmean(ratios), 2),
        "ratio_interval_95": [round(low, 2), round(high, 2)],
        "pairs": len(samples),
    }


if __name__ == "__main__":
    main()
