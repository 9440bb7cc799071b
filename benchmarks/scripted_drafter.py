"""What verification makes of a drafter that is right 70% of the time: tokens per second against plain decoding.

    python -m benchmarks.scripted_drafter --rows 1 4 --drafts 3
    python -m benchmarks.scripted_drafter --model llama-8b --rows 1 4 --drafts 3

One model plain and one with drafts, alternating. Drafts cost nothing, so that what is measured is core's share: the
wider pass, drawing, taking back, and the host between two rounds. Two numbers come of it:

- the share of (accepted length x plain step rate) that is reached, for each number of rows;
- the gain of several rows together as a share of the gain of the same rows one at a time.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import phyla
from phyla.backend.blas import load_fast_blas
from phyla.cli.bench.random_model import GEOMETRIES, write_random_folder
from phyla.registry import ModelsSettings, fetch_starter
from phyla.request import Failed, Finished, Rendered, Request, SamplingParams, Token
from phyla.settings import load_settings

from benchmarks.measurement import interval_95, versions, write_result
from benchmarks.scripted import Counting, load_scripted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from phyla.request import EngineEvent

STARTER = "starter"
COUNTING = [name for name, config in GEOMETRIES.items() if not config["tie_word_embeddings"]]
NUM_PROMPT = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=[STARTER, *COUNTING], default=STARTER)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--drafts", type=int, default=3, help="proposed in each round")
    parser.add_argument("--acceptance", type=float, default=0.7, help="probability that a draft is right")
    parser.add_argument("--tokens", type=int, default=96, help="decoded by each row")
    parser.add_argument("--pairs", type=int, default=10)
    arguments = parser.parse_args()
    load_fast_blas()
    with reference_of(arguments.model) as reference:
        result = measure(reference, arguments)
    flags = " ".join(
        f"--{name} {' '.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in vars(arguments).items()
    )
    write_result("scripted_drafter", flags, result, suffix=f"{arguments.model}_{arguments.drafts}")


@contextmanager
def reference_of(model: str) -> Iterator[str]:
    """The starter, or a folder of seeded random weights that counts."""
    if model == STARTER:
        yield str(fetch_starter(load_settings((ModelsSettings,), partial=True).section(ModelsSettings)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        write_random_folder(Path(scratch), GEOMETRIES[model], None, Counting())
        yield scratch


def measure(reference: str, arguments: argparse.Namespace) -> dict[str, Any]:
    prompts = [tuple(3 + (7 * index + row) % 500 for index in range(NUM_PROMPT)) for row in range(max(arguments.rows))]
    # Prompts are cached after their first run, so that rows begin together.
    options = {"batch": max(arguments.rows)}
    answers: dict[tuple[int, ...], Sequence[int]] = {}
    samples = []
    with (
        phyla.load(reference, **options) as plain,
        load_scripted(
            reference, answers, arguments.acceptance, num_draft_tokens=arguments.drafts, **options
        ) as drafting,
    ):
        sides = {"plain": plain, "drafted": drafting}
        for prompt in prompts:
            answers[prompt] = plain.generate(prompt, max_tokens=arguments.tokens, ignore_eos=True).token_ids
        # As long as what is measured: each length of the buffers has shapes of its own to trace and to compile for.
        for count, model in itertools.product(arguments.rows, sides.values()):
            decoded(model, prompts, count, arguments.tokens)
        for pair in range(arguments.pairs):
            order = list(sides) if pair % 2 == 0 else list(reversed(sides))
            sample = {
                str(count): {name: decoded(sides[name], prompts, count, arguments.tokens) for name in order}
                for count in arguments.rows
            }
            samples.append(sample)
            print(f"pair {pair + 1}: {sample}", flush=True)
        chosen = {"family": plain.plan.family.name, "device": plain.plan.backend.device_name, "dtype": plain.plan.dtype}
        ahead = drafting.engine.stats()["fast_route"]["ahead"]
    return {
        "versions": versions("phyla", "mlx", "numpy"),
        "chosen": chosen,
        "windows_ahead": ahead,
        "summary": {str(count): summary(samples, str(count)) for count in arguments.rows},
        "samples": samples,
    }


def decoded(model: phyla.Model, prompts: Sequence[tuple[int, ...]], count: int, num_tokens: int) -> dict[str, float]:
    """Tokens per second and per row's forward: all prompts, `count` of them at a time."""
    parts = [
        together(model, group, num_tokens)
        for group in (prompts[start : start + count] for start in range(0, len(prompts), count))
    ]
    num_decoded, num_forwards, seconds = (sum(part[index] for part in parts) for index in range(3))
    return {"per_second": round(num_decoded / seconds, 2), "per_forward": round(num_decoded / num_forwards, 3)}


def together(model: phyla.Model, prompts: Sequence[tuple[int, ...]], num_tokens: int) -> tuple[int, int, float]:
    """Tokens, forwards summed over rows, and seconds: while all rows run, prompts left out."""
    arrivals = Arrivals(len(prompts))
    unsubscribe = model.engine.subscribe(arrivals)
    for row, prompt in enumerate(prompts):
        request = Request(f"row-{row}", Rendered(prompt), SamplingParams(ignore_eos=True), num_tokens)
        model.engine.submit(request)
    arrivals.all_ended.wait()
    unsubscribe()
    began = max(times[0] for times in arrivals.times.values())
    ended = min(times[-1] for times in arrivals.times.values())
    within = [[one for one in times if began < one <= ended] for times in arrivals.times.values()]
    return sum(map(len, within)), sum(len(set(times)) for times in within), ended - began


@dataclass
class Arrivals:
    """A sink that notes when each token of each row left the engine; tokens of one round leave together."""

    num_rows: int

    def __post_init__(self) -> None:
        self.times: dict[str, list[float]] = {}
        self.all_ended = threading.Event()
        self._num_ended = 0

    def __call__(self, events: Sequence[EngineEvent]) -> None:
        now = time.perf_counter()
        for event in events:
            if isinstance(event, Token):
                self.times.setdefault(event.request_id, []).append(now)
            elif isinstance(event, Finished | Failed):
                assert isinstance(event, Finished), event
                self._num_ended += 1
        if self._num_ended == self.num_rows:
            self.all_ended.set()


def summary(samples: Sequence[Mapping[str, Any]], count: str) -> dict[str, Any]:
    gains = [gain(sample[count]) for sample in samples]
    reached = [one / sample[count]["drafted"]["per_forward"] for one, sample in zip(gains, samples, strict=True)]
    result = {
        "plain_tokens_per_second": round(statistics.fmean(one[count]["plain"]["per_second"] for one in samples), 1),
        "drafted_tokens_per_second": round(statistics.fmean(one[count]["drafted"]["per_second"] for one in samples), 1),
        "tokens_per_forward": round(statistics.fmean(one[count]["drafted"]["per_forward"] for one in samples), 2),
        "gain": with_interval(gains),
        "share_of_accepted_length_times_step_rate": with_interval(reached),
    }
    if count != "1" and "1" in samples[0]:
        shares = [one / gain(sample["1"]) for one, sample in zip(gains, samples, strict=True)]
        result["share_of_gain_alone"] = with_interval(shares)
    print(f"{count} rows: {result}", flush=True)
    return result


def gain(sides: Mapping[str, Mapping[str, float]]) -> float:
    return sides["drafted"]["per_second"] / sides["plain"]["per_second"]


def with_interval(values: Sequence[float]) -> dict[str, Any]:
    return {
        "mean": round(statistics.fmean(values), 3),
        "interval_95": [round(bound, 3) for bound in interval_95(values)],
        "pairs": len(values),
    }


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
