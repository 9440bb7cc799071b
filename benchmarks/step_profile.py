"""Where the host's time goes in one decode step, on both sides, in seconds of device time rather than minutes.

    python -m benchmarks.step_profile llama-1b
    python -m benchmarks.step_profile host-bound

Random weights, one row, greedy, the same files. Prints; writes no result. Three ways to step:

- mlx-lm: its model called as `generate_step` does: forward and token in one dispatch, then the token before is read.
- binding: ours in the same loop, without an engine.
- engine: what `model.stream` takes, beside `generate_step` itself, and what each part of the engine's turn costs.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import phyla
from phyla.backend.blas import load_fast_blas
from phyla.cli.bench.random_model import GEOMETRIES, RandomModel

from benchmarks.exact_route import mlx_lm_tokens

Step = Callable[[Any], Any]
"""From a (1,) token to (1, V) logits, nothing evaluated."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=GEOMETRIES, nargs="?", default="host-bound")
    parser.add_argument("--bits", type=int, choices=(4, 8), help="quantise both sides' files")
    parser.add_argument("--stored", type=int, default=512, help="tokens of the prompt")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    load_fast_blas()
    with tempfile.TemporaryDirectory() as scratch:
        folder = RandomModel(arguments.model, arguments.bits).write(Path(scratch))
        prompt = [3 + (7 * index) % 500 for index in range(arguments.stored)]
        profile_loops(folder, prompt, arguments.steps, arguments.rounds)
        profile_engine(folder, prompt, arguments.steps, arguments.rounds)


def profile_loops(folder: Path, prompt: list[int], num_steps: int, num_rounds: int) -> None:
    """Both models in one and the same loop."""
    sides = {"mlx-lm": mlx_lm_side(folder), "binding": binding_side(folder)}
    for name, begin in sides.items():
        print(f"{name:8} nodes of a step:", dict(count_nodes(begin(prompt)).most_common()), flush=True)
    for number in range(num_rounds + 1):
        for name, begin in sides.items():
            parts = time_loop(begin(prompt), num_steps)
            if number:
                print(f"{name:8}", _microseconds(parts), flush=True)


def mlx_lm_side(folder: Path) -> Callable[[list[int]], Step]:
    """Makes a step behind a prompt that was read."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache
    from mlx_lm.utils import load_model

    model = load_model(folder)[0]

    def begin(prompt: list[int]) -> Step:
        cache = make_prompt_cache(model)
        mx.eval(model(mx.array(prompt)[None], cache=cache))
        return lambda token: model(token[None], cache=cache)[:, -1, :]

    return begin


def binding_side(folder: Path) -> Callable[[list[int]], Step]:
    """As `mlx_lm_side`."""
    import mlx.core as mx
    from phyla.backend.detect import detect
    from phyla.kv.group import LoopGroup
    from phyla.kv.row_state import RowState
    from phyla.model.step import StepInput
    from phyla.plugins import discover
    from phyla.selection import resolve, select
    from phyla.settings import flags_from_options, load_settings

    manager = discover()
    settings = load_settings(
        manager.settings_sections(), flags=flags_from_options({"weights": "stored", "dtype": "bfloat16"})
    )
    parts = resolve(select(str(folder), manager, settings, detect()), manager, settings)
    binding, layout = parts.bind(), parts.plan.facts.layout

    def begin(prompt: list[int]) -> Step:
        group, position = LoopGroup(layout), len(prompt)
        group.seat(RowState.fresh(layout, parts.new_state))
        ids = mx.array([prompt], dtype=mx.int32)
        mx.eval(binding.forward(StepInput(ids, (position,), (0,)), group.states()).hidden)

        def step(token: Any) -> Any:
            nonlocal position
            given = StepInput(token[:, None], (1,), (position,))
            position += 1
            return binding.head(binding.forward(given, group.states()).hidden).squeeze(0)

        return step

    return begin


def time_loop(step: Step, num_steps: int) -> dict[str, list[float]]:
    """Seconds of each part of each step, in `generate_step`'s order."""
    import mlx.core as mx

    parts: dict[str, list[float]] = defaultdict(list)
    token = mx.array([3], dtype=mx.int32)
    mx.eval(token)
    for _ in range(num_steps):
        marks = [time.perf_counter()]
        logits = step(token)
        following = _greedy(logits)
        marks.append(time.perf_counter())
        mx.async_eval(following)  # type: ignore[no-untyped-call]
        marks.append(time.perf_counter())
        token.item()
        marks.append(time.perf_counter())
        token = following
        for name, (start, end) in zip(("build", "dispatch", "wait"), pairwise(marks), strict=True):
            parts[name].append(end - start)
        parts["step"].append(marks[-1] - marks[0])
    mx.synchronize()
    return parts


def count_nodes(step: Step) -> Counter[str]:
    """Operations of one step's graph, by name."""
    import mlx.core as mx

    text = StringIO()
    mx.export_to_dot(text, _greedy(step(mx.array([3], dtype=mx.int32))))  # type: ignore[no-untyped-call]
    labels = [line.split('label ="')[1].split('"')[0] for line in text.getvalue().splitlines() if "label =" in line]
    return Counter(labels)


def profile_engine(folder: Path, prompt: list[int], num_steps: int, num_rounds: int) -> None:
    """The real engine beside the real `generate_step`, then once more with its parts timed."""
    theirs = mlx_lm_tokens(folder, num_steps + 1)
    options = {"prompt_cache": "0", "batch": 8, "weights": "stored", "dtype": "bfloat16"}
    with phyla.load(str(folder), **options) as model:

        def ours(ids: list[int], ignore_eos: bool = True) -> Iterator[int]:
            for piece in model.stream(ids, max_tokens=num_steps + 1, ignore_eos=ignore_eos):
                if piece.token_id is not None:
                    yield piece.token_id

        _per_token(ours, prompt), _per_token(theirs, prompt)
        for _ in range(num_rounds):
            step, other = _per_token(ours, prompt), _per_token(theirs, prompt)
            print(
                f"engine {step * 1e6:.0f} us a token, generate_step {other * 1e6:.0f}: {other / step:.3f}x", flush=True
            )
        with _timed_parts() as parts:
            _per_token(ours, prompt)
        for name, seconds in parts.items():
            print(f"engine   {name:28} {sum(seconds) / num_steps * 1e6:8.1f} us a token ({len(seconds)} calls)")


@contextmanager
def _timed_parts() -> Iterator[dict[str, list[float]]]:
    """Time the engine's parts while inside; what a part calls counts in both."""
    import mlx.core as mx
    from phyla.engine.loop import EngineLoop
    from phyla.engine.runner import Runner
    from phyla.engine.scheduler import Scheduler

    watched: list[tuple[Any, str]] = [
        *((EngineLoop, name) for name in ("iterate", "_take_mail", "_admit", "_decode", "_speak", "_deliver")),
        *((Runner, name) for name in ("step", "_seated", "_forward", "_drawing", "_read", "_settle")),
        (Scheduler, "next_work"),
        (mx, "async_eval"),
    ]
    parts: dict[str, list[float]] = {}
    originals = [(owner, name, getattr(owner, name)) for owner, name in watched]
    for owner, name, original in originals:
        setattr(owner, name, _timing(original, parts.setdefault(name, [])))
    try:
        yield parts
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def _timing(function: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    @functools.wraps(function)
    def timed(*arguments: Any, **options: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            seconds.append(time.perf_counter() - began)

    return timed


def _per_token(side: Any, prompt: list[int]) -> float:
    """Seconds of a token after the first."""
    tokens = side(prompt)
    next(tokens)
    began = time.perf_counter()
    count = sum(1 for _ in tokens)
    return (time.perf_counter() - began) / count


def _greedy(logits: Any) -> Any:
    import mlx.core as mx

    return mx.argmax(logits - mx.logsumexp(logits, keepdims=True), axis=-1)


def _microseconds(parts: dict[str, list[float]]) -> str:
    return ", ".join(f"{name} {statistics.median(seconds) * 1e6:.0f}" for name, seconds in parts.items()) + " us"


if __name__ == "__main__":
    main()
