"""Phyla's exact route against mlx-lm: one row, random weights, the same files, the same process, in pairs.

    python -m benchmarks.exact_route --model llama-1b --pairs 10
    python -m benchmarks.exact_route --model llama-0.5b --dtype float32 --prompt 128 --decoded 24 --rows --pairs 10

The second is for a CPU: float32 is what its BLAS multiplies, and the lengths let ten pairs fit in minutes.

Also says whether the greedy tokens were equal, and how fast 8 and 32 rows are together.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import phyla
from phyla.backend.blas import load_fast_blas
from phyla.cli.bench.random_model import GEOMETRIES, RandomModel, write_random_folder

from benchmarks.measurement import interval_95, versions, write_result


@dataclass(frozen=True)
class Lengths:
    """Of a run, in tokens."""

    prompt: int = 512
    decoded: int = 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=GEOMETRIES, default="llama-0.5b")
    parser.add_argument("--bits", type=int, choices=(4, 8), help="quantise both sides' files")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--rows", type=int, nargs="*", default=[8, 32])
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of both sides' numbers")
    parser.add_argument("--prompt", type=int, default=Lengths.prompt, help="tokens that are read")
    parser.add_argument("--decoded", type=int, default=Lengths.decoded, help="tokens that are written")
    arguments = parser.parse_args()
    load_fast_blas()
    random_model = RandomModel(arguments.model, arguments.bits)
    with tempfile.TemporaryDirectory() as scratch:
        folder = _written(random_model, Path(scratch), arguments.dtype)
        lengths = Lengths(arguments.prompt, arguments.decoded)
        result = measure(folder, arguments.pairs, arguments.rows, arguments.dtype, lengths)
    is_float32 = arguments.dtype == "float32"
    suffix = f"{random_model.name}-float32" if is_float32 else random_model.name
    write_result("exact_route", shlex.join(sys.argv[1:]), result, suffix=suffix)


def _written(model: RandomModel, scratch: Path, dtype: str) -> Path:
    if dtype == "bfloat16":
        return model.write(scratch)
    import mlx.core as mx

    folder = scratch / model.name
    folder.mkdir()
    write_random_folder(folder, GEOMETRIES[model.geometry], model.bits, lambda name, array: array.astype(mx.float32))
    return folder


def measure(
    folder: Path,
    num_pairs: int,
    row_counts: Sequence[int],
    dtype: str = "bfloat16",
    lengths: Lengths = Lengths(),
) -> dict[str, Any]:
    prompt = [3 + (7 * index) % 500 for index in range(lengths.prompt)]
    theirs = mlx_lm_tokens(folder, lengths.decoded + 1)
    options = {"prompt_cache": "0", "batch": max([8, *row_counts]), "weights": "stored", "dtype": dtype}
    samples: list[dict[str, Any]] = []
    with phyla.load(str(folder), **options) as model:

        def ours(ids: list[int]) -> Iterator[int]:
            for piece in model.stream(ids, max_tokens=lengths.decoded + 1, ignore_eos=True):
                if piece.token_id is not None:
                    yield piece.token_id

        _timed(ours, prompt), _timed(theirs, prompt)
        for pair in range(num_pairs):
            sides = (("phyla", ours), ("mlx_lm", theirs))
            timed = {name: _timed(side, prompt) for name, side in (sides if pair % 2 else sides[::-1])}
            same = timed["phyla"].pop("tokens") == timed["mlx_lm"].pop("tokens")
            samples.append({**timed, "same_tokens": same})
            print(samples[-1], flush=True)
        together = {str(count): _together(model, prompt, count, lengths.decoded) for count in row_counts}
        print(together, flush=True)
        chosen = {"family": model.plan.family.name, "device": model.plan.backend.device_name}
    return {
        "versions": versions("phyla", "mlx", "mlx-lm"),
        "chosen": chosen,
        "num_prompt_tokens": lengths.prompt,
        "num_decoded_tokens": lengths.decoded,
        "summary": {
            "prefill": _ratio(samples, "prefill"),
            "decode": _ratio(samples, "decode"),
            "same_tokens": all(sample["same_tokens"] for sample in samples),
            "rows_together_tokens_per_second": together,
        },
        "samples": samples,
    }


def mlx_lm_tokens(folder: Path, num_tokens: int) -> Any:
    """From a prompt's ids to so many tokens, by mlx-lm."""
    from mlx_lm.generate import generate_step
    from mlx_lm.utils import load_model

    model = load_model(folder)[0]

    def tokens(ids: list[int]) -> Iterator[int]:
        import mlx.core as mx

        for token, _logprobs in generate_step(mx.array(ids), model, max_tokens=num_tokens):
            yield int(token)

    return tokens


def _timed(side: Any, prompt: list[int]) -> dict[str, Any]:
    """Tokens per second of reading the prompt up to the first token, and of the tokens after it."""
    started = time.perf_counter()
    tokens = side(prompt)
    first = next(tokens)
    read = time.perf_counter()
    rest = list(tokens)
    ended = time.perf_counter()
    rates = {"prefill": len(prompt) / (read - started), "decode": len(rest) / (ended - read)}
    return {**{name: round(rate, 2) for name, rate in rates.items()}, "tokens": [first, *rest]}


def _together(model: phyla.Model, prompt: list[int], count: int, num_tokens: int) -> float:
    """Tokens per second of `count` rows that decode side by side, prefill left out."""

    def one(row: int) -> tuple[float, float]:
        times = [time.perf_counter() for _ in model.stream([row, *prompt], max_tokens=num_tokens, ignore_eos=True)]
        return times[0], times[-1]

    with ThreadPoolExecutor(count) as pool:
        spans = list(pool.map(one, range(3, 3 + count)))
    # From when all rows run to when the first one ends, each row decodes at the shared rate.
    seconds = max(last for _, last in spans) - max(first for first, _ in spans)
    return round(count * num_tokens / seconds, 1)


def _ratio(samples: Sequence[Mapping[str, Any]], what: str) -> dict[str, Any]:
    ratios = [sample["phyla"][what] / sample["mlx_lm"][what] for sample in samples]
    mean = {side: sum(sample[side][what] for sample in samples) / len(samples) for side in ("phyla", "mlx_lm")}
    return {
        "phyla": round(mean["phyla"], 1),
        "mlx_lm": round(mean["mlx_lm"], 1),
        "ratio": round(sum(ratios) / len(ratios), 3),
        "ratio_interval_95": [round(bound, 3) for bound in interval_95(ratios)],
        "pairs": len(ratios),
    }


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
