"""`phyla bench engine`: load what the cases need, once for each route, and measure them."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx

from phyla.assembly import fit_equation
from phyla.backend import BackendFacts
from phyla.baseline import Baseline, BaselineModel
from phyla.checkpoint import FolderCheckpoint
from phyla.cli.bench.cases import Case
from phyla.cli.bench.contenders import BaselineSide, Contender, OurSide
from phyla.cli.bench.measuring import Bound, Effort, least_tokens, measure_case
from phyla.cli.bench.prompts import FIRST_ID, PromptMaker
from phyla.cli.bench.random_model import TOKENIZER_VOCABULARY, RandomModel, is_random
from phyla.cli.bench.record import machine, versions
from phyla.engine.settings import EngineSettings
from phyla.errors import RefusedCombination, UsageError
from phyla.library import Model, start
from phyla.plan import Plan
from phyla.plugins import PluginManager
from phyla.selection import Parts, resolve, select
from phyla.selection.settings import SelectionSettings
from phyla.settings import Settings

CLOSE_SECONDS = 60.0


@dataclass(frozen=True)
class EngineBench:
    """What one command measures."""

    reference: str
    cases: Sequence[Case]
    effort: Effort = field(default_factory=Effort)
    baseline: Baseline | None = None
    text: str | None = None
    bytes_per_second: float | None = None
    """Memory bandwidth; None takes what is known of the device, if anything is."""

    weights_folder: Path | None = None
    """Where random weights are kept; None throws them away again."""

    keep: Callable[[dict[str, Any]], None] = lambda result: None
    """Called with the result so far after each case: what was measured survives what comes after."""

    told: Callable[[str], None] = lambda line: None
    """Called with a line about each case."""


def run_engine_bench(bench: EngineBench, manager: PluginManager, settings: Settings, backend: BackendFacts) -> Any:
    """Measure all cases.

    Args:
        bench: what to measure.
        manager: whose families, schemes and methods there are.
        settings: all the rest; the route of a case and room for its rows are set on top.
        backend: of this process, which has loaded a fast BLAS before mlx.

    Returns:
        JSON values.

    Raises:
        PhylaError: whatever stands in the way.
    """
    result: dict[str, Any] = {"machine": machine(), "versions": _versions(bench), "device": backend.device_name}
    result |= {"tokens": bench.effort.num_tokens, "cases": []}
    with _folder_of(bench) as reference:
        parts_of = {route: _parts(reference, bench, route, manager, settings, backend) for route in _routes(bench)}
        for parts in parts_of.values():
            _check(bench, parts)
        with _baseline(bench, next(iter(parts_of.values()))) as other:
            for route, parts in parts_of.items():
                result.setdefault("model", _described(parts))
                _measure_route(bench, route, parts, other, result, manager, settings)
    return result


def _measure_route(
    bench: EngineBench,
    route: str | None,
    parts: Parts,
    other: BaselineModel | None,
    result: dict[str, Any],
    manager: PluginManager,
    settings: Settings,
) -> None:
    bound = _bound(bench, parts)
    with _running(parts, manager, _with_room(bench, settings)) as model:
        sides: list[Contender] = [OurSide(model)]
        if other is not None and bench.baseline is not None:
            sides.append(BaselineSide(bench.baseline.name, other))
        prompts = _prompts(bench, model)
        for case in (one for one in bench.cases if one.route == route):
            measured = measure_case(case, sides, prompts, bench.effort, bound, model.facts.context_limit)
            measured["plan"] = {"route": parts.plan.route, "notices": list(parts.plan.notices)}
            result["cases"].append(measured)
            bench.keep(result)
            bench.told(_line(measured))


@contextmanager
def _running(parts: Parts, manager: PluginManager, settings: Settings) -> Iterator[Model]:
    """Started and closed again, but for the plugin manager: the next route needs it."""
    model = start(parts, manager, settings)
    try:
        yield model
    finally:
        model.engine.close(CLOSE_SECONDS)
        model.renderer.close()
        model.constraints.close()
        mx.clear_cache()


@contextmanager
def _folder_of(bench: EngineBench) -> Iterator[str]:
    if not is_random(bench.reference):
        yield bench.reference
        return
    made = RandomModel.parse(bench.reference)
    if bench.weights_folder is not None:
        yield str(made.write(bench.weights_folder))
        return
    with tempfile.TemporaryDirectory(prefix="phyla-bench-") as scratch:
        yield str(made.write(Path(scratch)))


@contextmanager
def _baseline(bench: EngineBench, parts: Parts) -> Iterator[BaselineModel | None]:
    if bench.baseline is None:
        yield None
        return
    checkpoint = parts.checkpoint
    if not isinstance(checkpoint, FolderCheckpoint):
        raise UsageError(f"--against needs a model folder, which {checkpoint.model_id} isn't.")
    model = bench.baseline.open(checkpoint.folder)
    try:
        yield model
    finally:
        model.close()


def _parts(
    reference: str,
    bench: EngineBench,
    route: str | None,
    manager: PluginManager,
    settings: Settings,
    backend: BackendFacts,
) -> Parts:
    chosen = _with_room(bench, settings)
    if route is not None:
        chosen = chosen.with_flag(SelectionSettings, "route", route, f"--case {route}:...")
    return resolve(select(reference, manager, chosen, backend), manager, chosen)


def _with_room(bench: EngineBench, settings: Settings) -> Settings:
    """Room for all rows of a case at once, unless --batch says otherwise."""
    needed = max(case.num_rows for case in bench.cases)
    chosen = settings.section(EngineSettings)
    if needed <= chosen.batch:
        return settings
    if settings.origin(EngineSettings, "batch").is_explicit:
        raise RefusedCombination(f"--batch {chosen.batch} can't run {needed} rows together. Leave it away.")
    return settings.with_flag(EngineSettings, "batch", needed, "--batch")


def _routes(bench: EngineBench) -> tuple[str | None, ...]:
    """In the order they are first asked for: each is loaded once."""
    return tuple(dict.fromkeys(case.route for case in bench.cases))


def _check(bench: EngineBench, parts: Parts) -> None:
    limit = parts.plan.facts.context_limit
    for case in bench.cases:
        least = least_tokens(case, bench.effort)
        if least > limit:
            raise UsageError(f"{case.name} comes to {least} tokens in a row; {parts.plan.model_id} has {limit}.")


def _prompts(bench: EngineBench, model: Model) -> PromptMaker:
    vocabulary = min(model.facts.vocab_size, model.tokenizer.vocab_size)
    num_ids = min(vocabulary, TOKENIZER_VOCABULARY) if is_random(bench.reference) else vocabulary
    ids = None if bench.text is None else model.tokenizer.encode(bench.text)
    if ids is not None and not ids:
        raise UsageError("--text is empty: there is nothing to read.")
    return PromptMaker(max(num_ids, FIRST_ID + 1), ids)


def _bound(bench: EngineBench, parts: Parts) -> Bound | None:
    rate = bench.bytes_per_second or parts.plan.backend.bandwidth_bytes_per_second
    if rate is None or parts.plan.facts.weight_bytes.experts:
        return None
    fit = fit_equation(parts)
    return Bound(rate, fit.weight_bytes, fit.row_bytes)


def _versions(bench: EngineBench) -> Mapping[str, str]:
    return versions("phyla", "mlx") | dict(bench.baseline.versions() if bench.baseline is not None else {})


def _described(parts: Parts) -> dict[str, Any]:
    plan: Plan = parts.plan
    kinds = itertools.groupby(sorted(plan.layer_schemes))
    return {
        "id": plan.model_id,
        "family": plan.family.name,
        "dtype": plan.dtype,
        "weights": plan.weights,
        "weight_bytes": fit_equation(parts).weight_bytes,
        "layer_schemes": {scheme: len(list(layers)) for scheme, layers in kinds},
        "method": plan.method.name,
    }


def _line(measured: Mapping[str, Any]) -> str:
    rates = ", ".join(f"{name} {one['tokens_per_second']:.1f} tok/s" for name, one in measured["sides"].items())
    ratio = ""
    if "ratio" in measured:
        low, high = measured["ratio_interval_95"]
        ratio = f", {measured['ratio']}x" + (f" ({low} to {high})" if measured["pairs"] > 1 else "")
    return f"{measured['case']}: {rates}{ratio}; {measured['pairs']} in {measured['seconds']:.0f} s"
