"""What structured output costs on the starter, for each grammar engine.

decode      time per token with a JSON schema and without: runs of one loaded model that alternate every two seconds
first_mask  from a schema of 50 properties that nobody has sent before to its first mask
masks       filling a mask, over the valid values of the official JSON Schema test suite, token by token
company     a running client's time between tokens while another's hard schemas compile, while a process of the lowest
            priority computes for nothing, and while nobody does anything, in turn
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import phyla
from phyla.errors import ConstraintError
from phyla.request import ConstraintSpec
from phyla_server.interpreter import freeze_garbage, share_interpreter

from benchmarks.measurement import interval_95, versions, write_result

ENGINES = ("llguidance", "xgrammar")
NUM_DECODED = 33
NUM_RUNS = 4
"""Of each side in a pair, one of each in turn: what the machine does meanwhile meets both."""

NUM_GAPS = 600
"""Between the tokens of a pair's streams, at least, alone and beside each kind of company."""

NUM_STREAMED = 200
PHASE_SECONDS = 3.0
"""Of one kind of company, at least. Short: a machine's own pace drifts within a minute, and then meets all of them."""

ALONE = "alone"
LOOP = "a bare loop"
"""What any work on the machine costs that gives way as far as it can: how near to 1 a schema may come here."""

HARD_FOR = {"listed": ENGINES, "divided": ("llguidance",)}
"""Engines that take each kind of hard schema."""

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
    """Paired times per token."""
    with phyla.load("starter", proposer=engine) as model:
        sides: dict[str, dict[str, Any]] = {
            "free": {},
            "bound": {"constraint": ConstraintSpec("json_schema", json.dumps(STORY))},
        }
        for extra in sides.values():
            seconds_per_token(model, extra)
        as_a_server()
        samples = []
        for number in range(num_pairs):
            taken: dict[str, list[float]] = {name: [] for name in sides}
            for run in range(NUM_RUNS):
                # Which side goes first changes: a machine that slows down must not favour one of them.
                for name in list(sides) if run % 2 == 0 else list(reversed(sides)):
                    taken[name].append(seconds_per_token(model, sides[name]))
            samples.append({name: round(statistics.fmean(each) * 1e3, 3) for name, each in taken.items()})
            print(f"{engine} pair {number + 1}: {samples[-1]}", flush=True)
    overheads = [sample["bound"] / sample["free"] - 1 for sample in samples]
    return {"overhead_percent": interval(overheads, 100), "milliseconds_per_token": samples}


def as_a_server() -> None:
    """Threads take turns and garbage is collected as in `phyla serve`, which is what the numbers are for."""
    share_interpreter()
    freeze_garbage()


def seconds_per_token(model: phyla.Model, extra: dict[str, Any]) -> float:
    usage = model.chat(PROMPT, max_tokens=NUM_DECODED, **extra).usage
    assert usage.num_completion_tokens == NUM_DECODED, "the answer ended early"
    return usage.decode_seconds / (NUM_DECODED - 1)


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
    sources = {name: source for name, source in hard_schemas().items() if engine in HARD_FOR[name]}
    with phyla.load("starter", proposer=engine) as model:
        model.constraints.warm_up()
        model.chat(PROMPT, max_tokens=NUM_STREAMED)
        as_a_server()
        other = OtherClient(model, sources)
        samples: list[dict[str, dict[str, float]]] = []
        try:
            for number in range(num_pairs):
                samples.append({name: percentiles(gaps) for name, gaps in beside(model, other).items()})
                print(f"{engine} pair {number + 1}: {samples[-1]}, {other.num_sent} schemas so far", flush=True)
        finally:
            other.close()
    return {"ratios": {name: ratios(samples, name) for name in (*sources, LOOP)}, "milliseconds": samples}


def ratios(samples: Sequence[Mapping[str, Mapping[str, float]]], name: str) -> dict[str, Any]:
    return {
        share: interval([sample[name][share] / sample[ALONE][share] for sample in samples]) for share in ("p50", "p99")
    }


def beside(model: phyla.Model, other: OtherClient) -> dict[str, list[float]]:
    """Milliseconds between the tokens of long answers, by what was going on meanwhile."""
    gaps: dict[str, list[float]] = {name: [] for name in other.kinds}
    while min(map(len, gaps.values())) < NUM_GAPS:
        last: float | None = None
        before = other.phase
        for piece in model.stream_chat(PROMPT, max_tokens=NUM_STREAMED):
            if piece.token_id is None:
                continue
            now, after = time.perf_counter(), other.phase
            # A gap in which that changed is nobody's.
            if last is not None and before is after:
                gaps[after.name].append((now - last) * 1e3)
            last, before = now, after
    return gaps


@dataclass(frozen=True, eq=False)
class Phase:
    """Of another client's doing."""

    name: str
    """The kind of schema it sends, `LOOP` or `ALONE`."""


class OtherClient:
    """Sends one hard schema after another, each as no one before; lets a loop run; does nothing; in turn.

    What it sends was written before: a client's own work is done on a machine of its own.
    """

    def __init__(self, model: phyla.Model, sources: Mapping[str, str]) -> None:
        self.kinds = (ALONE, *sources, LOOP)
        self.phase = Phase(ALONE)
        self.num_sent = 0
        self._model = model
        self._sources = sources
        self._is_closed = threading.Event()
        self._loop = stopped_loop()
        self._thread = threading.Thread(target=self._go_round)
        self._thread.start()

    def close(self) -> None:
        self._is_closed.set()
        self._thread.join()
        self._loop.kill()
        self._loop.wait()

    def _go_round(self) -> None:
        for name in itertools.cycle(self.kinds):
            self.phase = Phase(name)
            if name in self._sources:
                self._send(self._sources[name])
            elif name == LOOP:
                self._loop.send_signal(signal.SIGCONT)
                self._is_closed.wait(PHASE_SECONDS)
                self._loop.send_signal(signal.SIGSTOP)
            else:
                self._is_closed.wait(PHASE_SECONDS)
            if self._is_closed.is_set():
                return

    def _send(self, source: str) -> None:
        begun = time.perf_counter()
        while time.perf_counter() - begun < PHASE_SECONDS and not self._is_closed.is_set():
            self.num_sent += 1
            another = source.replace("ANOTHER", str(self.num_sent), 1)
            with suppress(ConstraintError):
                self._model.constraints.compile(ConstraintSpec("json_schema", another))


def stopped_loop() -> subprocess.Popen[bytes]:
    """A process that computes for nothing where a core would idle, until somebody continues it."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))
    process.send_signal(signal.SIGSTOP)
    return process


def hard_schemas() -> dict[str, str]:
    """By name: a quarter of a megabyte, which takes one engine a second; few bytes that take the other one as long."""
    listed = {"$comment": "ANOTHER", "enum": [f"value {index}" for index in range(20_000)]}
    divided = {"$comment": "ANOTHER", "type": "integer", "multipleOf": 97 * 89 * 11}
    return {"listed": json.dumps(listed), "divided": json.dumps(divided)}


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
