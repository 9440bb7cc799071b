"""What structured output costs on the starter, for each grammar engine.

decode      tokens per second with a JSON schema and without, in alternating runs of one loaded model
first_mask  from a schema of 50 properties that nobody has sent before to its first mask
masks       filling a mask, over the valid values of the official JSON Schema test suite, token by token
company     a running client's time between tokens while another sends schemas that are hard to compile
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import phyla
from phyla.errors import ConstraintError
from phyla.request import ConstraintSpec

from benchmarks.measurement import interval_95, versions, write_result

ENGINES = ("llguidance", "xgrammar")
NUM_DECODED = 64
STORY = {
    "type": "object",
    "properties": {"story": {"type": "string"}},
    "required": ["story"],
    "additionalProperties": False,
}
PROMPT = [{"role": "user", "content": "Write a long story about a fisherman who finds a letter."}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--pairs", type=int, default=10, help="paired runs, or schemas tried")
    parser.add_argument("--engine", choices=ENGINES, action="append", help="only this one; may be repeated")
    options = parser.parse_args()
    engines = tuple(options.engine or ENGINES)
    result: dict[str, Any] = {
        "versions": versions("phyla", "mlx", "numpy", *engines),
        "model": "SmolLM2-135M-Instruct, Q4_1 (the starter)",
        "part": options.part,
        "engines": {engine: PARTS[options.part](engine, options.pairs) for engine in engines},
    }
    write_result("grammar_cost", f"{options.part} --pairs {options.pairs}", result, suffix=options.part)


def decode(engine: str, num_pairs: int) -> dict[str, Any]:
    """Paired decode rates."""
    with phyla.load("starter", proposer=engine) as model:
        constraint = ConstraintSpec("json_schema", json.dumps(STORY))
        sides: dict[str, dict[str, Any]] = {"free": {"ignore_eos": True}, "bound": {"constraint": constraint}}
        for extra in sides.values():
            decode_rate(model, extra)
        samples = []
        for number in range(num_pairs):
            # Which side goes first changes: a machine that slows down must not favour one of them.
            order = list(sides) if number % 2 == 0 else list(reversed(sides))
            samples.append({name: decode_rate(model, sides[name]) for name in order})
            print(f"{engine} pair {number + 1}: {samples[-1]}", flush=True)
    overheads = [sample["free"] / sample["bound"] - 1 for sample in samples]
    return {"overhead_percent": interval(overheads, 100), "samples": samples}


def decode_rate(model: phyla.Model, extra: dict[str, Any]) -> float:
    usage = model.chat(PROMPT, max_tokens=NUM_DECODED, **extra).usage
    assert usage.num_completion_tokens == NUM_DECODED, "the answer ended early"
    return (NUM_DECODED - 1) / usage.decode_seconds


def first_mask(engine: str, num_schemas: int) -> dict[str, Any]:
    """Milliseconds to the first mask of schemas that aren't known yet."""
    with phyla.load("starter", proposer=engine) as model:
        model.constraints.warm_up()
        taken = []
        for number in range(num_schemas):
            spec = ConstraintSpec("json_schema", json.dumps(fifty_properties(number)))
            began = time.perf_counter()
            model.constraints.compile(spec).compiled.open().mask()
            taken.append((time.perf_counter() - began) * 1e3)
    return {"milliseconds": percentiles(taken)}


def fifty_properties(number: int) -> dict[str, Any]:
    kinds = ({"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}, {"enum": ["a", "b", "c"]})
    properties = {f"property_{number}_{index}": kinds[index % len(kinds)] for index in range(50)}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def masks(engine: str, num_schemas: int) -> dict[str, Any]:
    """Microseconds per mask with the starter's vocabulary."""
    from tests.plugins.grammar.schema_suite import suite

    with tempfile.TemporaryDirectory() as folder:
        cases = [case for case in suite(Path(folder)) if case.is_valid]
    taken: list[float] = []
    with phyla.load("starter", proposer=engine) as model:
        for case in cases:
            spec = ConstraintSpec("json_schema", json.dumps(case.schema))
            with suppress(ConstraintError):
                matcher = model.constraints.compile(spec).compiled.open()
                taken.extend(mask_times(matcher, model.tokenizer.encode(json.dumps(case.value), parse_special=False)))
    return {"microseconds": percentiles(taken), "masks": len(taken)}


def mask_times(matcher: Any, ids: Sequence[int]) -> Iterator[float]:
    # Not at the top: it brings mlx, which must not come before the fast BLAS.
    from phyla.sampling.token_mask import allows

    for token_id in ids:
        began = time.perf_counter()
        mask = matcher.mask()
        yield (time.perf_counter() - began) * 1e6
        if not allows(mask, token_id):
            return
        matcher.accept(token_id)


def company(engine: str, num_pairs: int) -> dict[str, Any]:
    """Paired 99th percentiles of the time between a row's tokens."""
    with phyla.load("starter", proposer=engine) as model:
        model.constraints.warm_up()
        gaps(model)
        samples = []
        for number in range(num_pairs):
            sides: dict[str, Callable[[], float]] = {
                "alone": lambda: gaps(model),
                "beside": lambda number=number: beside(model, number),  # type: ignore[misc]
            }
            order = list(sides) if number % 2 == 0 else list(reversed(sides))
            samples.append({name: sides[name]() for name in order})
            print(f"{engine} pair {number + 1}: {samples[-1]}", flush=True)
    ratios = [sample["beside"] / sample["alone"] for sample in samples]
    return {"p99_ratio": interval(ratios), "samples": samples}


def gaps(model: phyla.Model) -> float:
    """The 99th percentile of milliseconds between tokens of one long answer."""
    times = [time.perf_counter() for _ in model.stream_chat(PROMPT, max_tokens=200, ignore_eos=True)]
    between = [(later - earlier) * 1e3 for earlier, later in itertools.pairwise(times)]
    return statistics.quantiles(between, n=100)[98]


def beside(model: phyla.Model, number: int) -> float:
    """As `gaps`, while somebody else has one hard schema compiled."""

    def compile_hard() -> None:
        hard = {"enum": [f"value {number} {index}" for index in range(20_000)]}
        with suppress(ConstraintError):
            model.constraints.compile(ConstraintSpec("json_schema", json.dumps(hard)))

    other = threading.Thread(target=compile_hard)
    other.start()
    try:
        return gaps(model)
    finally:
        other.join()


def percentiles(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    shares = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
    found = {name: ordered[min(len(ordered) - 1, int(share * len(ordered)))] for name, share in shares.items()}
    return {name: round(value, 2) for name, value in {**found, "most": ordered[-1]}.items()}


def interval(values: Sequence[float], scale: float = 1.0) -> dict[str, Any]:
    low, high = interval_95([scale * value for value in values])
    return {
        "mean": round(scale * statistics.fmean(values), 2),
        "interval_95": [round(low, 2), round(high, 2)],
        "pairs": len(values),
    }


PARTS: dict[str, Callable[[str, int], dict[str, Any]]] = {
    "decode": decode,
    "first_mask": first_mask,
    "masks": masks,
    "company": company,
}

if __name__ == "__main__":
    main()
