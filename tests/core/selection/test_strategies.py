"""Forced strategies: honoured, or refused with the reason when the plan is made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from phyla.backend import BackendFacts
from phyla.backend.strategy import StrategySettings
from phyla.engine.settings import EngineSettings
from phyla.errors import PhylaError, RefusedCombination, UsageError
from phyla.kv.layer_spec import LayerSpec
from phyla.kv.plain import PLAIN
from phyla.model import ModelFacts
from phyla.plugins import PluginManager
from phyla.selection import SelectionSettings, select
from phyla.settings import Settings, load_settings
from phyla.testing.toy import ToyFamily

from tests.core.selection.conftest import TOY, Declaring, ShelfCheckpoint, scheme, shelf
from tests.core.selection.test_plan import QUANTISED


@pytest.fixture
def packed(manager: PluginManager) -> PluginManager:
    manager.register("second", Declaring(openers=[replace(shelf(packed=QUANTISED), name="second shelf")]))
    return manager


def filled(**flags: Any) -> Settings:
    spelt = {f"--{name.replace('_', '-')}": text for name, text in flags.items()}
    return load_settings([SelectionSettings, EngineSettings, StrategySettings], flags=spelt, env={})


class CappedFamily(ToyFamily):
    """A toy whose attention scores are capped."""

    def describe(self, checkpoint: Any) -> ModelFacts:
        facts = super().describe(checkpoint)
        return replace(facts, layout=tuple(capped(layer) for layer in facts.layout))


def capped(layer: LayerSpec) -> LayerSpec:
    return replace(layer, softcap=50.0)


def test_a_forced_product_decides_the_weight_form(packed: PluginManager, backend: BackendFacts) -> None:
    plan = select("packed", packed, filled(strategy="qmm=split16"), backend)
    assert (plan.weights, plan.weights_choice.reason) == ("stored", "--strategy qmm=split16 multiplies stored weights")
    assert select("packed", packed, filled(strategy="qmm=dense"), backend).weights == "dense"


@pytest.mark.parametrize(
    ("reference", "flags", "error", "message"),
    [
        ("toy", {"strategy": "qmm=split16"}, UsageError, "isn't quantised"),
        (
            "packed",
            {"strategy": "qmm=dense", "weights": "stored"},
            RefusedCombination,
            "can't multiply --weights stored",
        ),
        (
            "packed",
            {"strategy": "qmm=split16", "weights": "dense"},
            RefusedCombination,
            "can't multiply --weights dense",
        ),
        ("packed", {"strategy": "qmm=dense", "route": "exact"}, RefusedCombination, "--route exact keeps"),
        ("packed", {"strategy": "qmm=dense", "batch": 1}, RefusedCombination, "--batch 1 keeps"),
        ("toy", {"strategy": "attention=fused"}, UsageError, "rows of different lengths"),
        (
            "toy",
            {"strategy": "attention=loop", "compiled_decode": "on"},
            RefusedCombination,
            "--compiled-decode on excludes it",
        ),
        ("toy", {"strategy": "attention=loop", "group": "stacked"}, RefusedCombination, "excludes --group stacked"),
        ("toy", {"strategy": "attention=grouped", "group": "loop"}, RefusedCombination, "excludes --group loop"),
        ("toy", {"compiled_decode": "on", "group": "loop"}, RefusedCombination, "--group loop excludes"),
    ],
)
def test_a_strategy_that_cannot_run_is_refused_with_the_reason(
    packed: PluginManager,
    backend: BackendFacts,
    reference: str,
    flags: dict[str, Any],
    error: type[PhylaError],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        select(reference, packed, filled(**flags), backend)


def test_no_fused_kernel_caps_scores(backend: BackendFacts) -> None:
    manager = PluginManager()
    manager.register("capped", Declaring(openers=[shelf(toy=TOY)], families=[CappedFamily()], schemes=[PLAIN]))
    with pytest.raises(UsageError, match="layer 0 are capped at 50"):
        select("toy", manager, filled(strategy="attention=fused_mask"), backend)
    assert select("toy", manager, filled(strategy="attention=grouped"), backend).strategies.forced


@pytest.mark.parametrize(
    ("reference", "strategy", "instead"),
    [
        ("toy", "attention=ragged", "grouped"),
        ("toy", "matmul=streamed", "whole"),
        ("packed", "qmm=streamed", "whole"),
    ],
)
def test_a_cuda_kernel_is_refused_where_there_is_no_such_device(
    packed: PluginManager,
    backend: BackendFacts,
    monkeypatch: pytest.MonkeyPatch,
    reference: str,
    strategy: str,
    instead: str,
) -> None:
    monkeypatch.setattr(mx.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match=f"a CUDA kernel, and there is no such device here. Use {instead}"):
        select(reference, packed, filled(strategy=strategy), backend)


@pytest.mark.parametrize(
    ("section", "dtype", "message"),
    [
        ({"bits": 4, "group_size": 64}, "bfloat16", None),
        ({"bits": 4, "group_size": 64}, "float32", "the model computes in float32. Use whole, or --dtype bfloat16"),
        ({"bits": 8, "group_size": 64}, "bfloat16", "written for 4 bits, and here are 8. Use whole"),
        ({"bits": 4, "group_size": 32, "mode": "mxfp4"}, "bfloat16", "for affine numbers, and here are mxfp4"),
    ],
)
def test_weights_that_the_streamed_kernel_does_not_read_are_refused(
    manager: PluginManager,
    backend: BackendFacts,
    monkeypatch: pytest.MonkeyPatch,
    section: dict[str, Any],
    dtype: str,
    message: str | None,
) -> None:
    monkeypatch.setattr(mx.cuda, "is_available", lambda: True)
    checkpoint = ShelfCheckpoint("toy", {**QUANTISED.config, "quantization": section}, QUANTISED.infos)
    manager.register("second", Declaring(openers=[replace(shelf(packed=checkpoint), name="second shelf")]))
    asked = filled(strategy="qmm=streamed", dtype=dtype)
    if message is None:
        assert select("packed", manager, asked, backend).weights == "stored"
    else:
        with pytest.raises(UsageError, match=message):
            select("packed", manager, asked, backend)


def test_a_scheme_that_attends_by_itself_excludes_forced_attention(
    manager: PluginManager, backend: BackendFacts
) -> None:
    manager.register("schemes", Declaring(schemes=[scheme("boxes", "full", "sliding")]))
    with pytest.raises(UsageError, match="'boxes' attends in its own way"):
        select("toy", manager, filled(strategy="attention=grouped", kv_scheme="boxes"), backend)


def test_layers_that_a_strategy_does_not_reach_are_named(manager: PluginManager, backend: BackendFacts) -> None:
    manager.register("schemes", Declaring(schemes=[scheme("boxes", "sliding")]))
    plan = select("toy", manager, filled(strategy="attention=grouped", kv_scheme="boxes"), backend)
    assert "--strategy doesn't reach layers 1: their KV scheme attends in its own way." in plan.notices


def test_the_exact_route_says_that_strategies_have_no_effect(manager: PluginManager, backend: BackendFacts) -> None:
    plan = select("toy", manager, filled(strategy="attention=grouped", route="exact"), backend)
    assert any("--route exact computes as mlx-lm does" in notice for notice in plan.notices)


def test_dense_weights_that_do_not_fit_are_refused_with_figures(packed: PluginManager, backend: BackendFacts) -> None:
    small = replace(backend, working_set_bytes=10_000)
    with pytest.raises(UsageError, match=r"Dequantised, the weights take 0\.0 GB.*--weights stored"):
        select("packed", packed, filled(weights="dense"), small)


def test_auto_falls_back_to_stored_weights_with_figures(packed: PluginManager, backend: BackendFacts) -> None:
    plan = select("packed", packed, filled(), replace(backend, working_set_bytes=10_000))
    assert (plan.weights, plan.weights_choice.chosen_by) == ("stored", "auto")
    assert "dequantised they would take" in plan.weights_choice.reason


def test_the_identity_knows_the_tables(packed: PluginManager, backend: BackendFacts) -> None:
    settings = [filled(), filled(strategy="attention=grouped"), filled(strategy="append=slices")]
    assert len({select("toy", packed, one, backend).identity.digest() for one in settings}) == 3


def test_a_family_that_runs_whole_cannot_be_compiled(backend: BackendFacts) -> None:
    class WholeFamily(ToyFamily):
        def describe(self, checkpoint: Any) -> ModelFacts:
            return replace(super().describe(checkpoint), can_cut_forward=False)

    manager = PluginManager()
    manager.register("whole", Declaring(openers=[shelf(toy=TOY)], families=[WholeFamily()], schemes=[PLAIN]))
    with pytest.raises(UsageError, match="family 'toy' run whole"):
        select("toy", manager, filled(compiled_decode="on"), backend)


def test_compiling_says_where_it_has_no_effect(manager: PluginManager, backend: BackendFacts) -> None:
    plan = select("toy", manager, filled(compiled_decode="on", batch=1), backend)
    assert "--compiled-decode on has no effect: --batch 1 computes as mlx-lm does." in plan.notices


def test_starting_ahead_says_where_it_has_no_effect(manager: PluginManager, backend: BackendFacts) -> None:
    plan = select("toy", manager, filled(windows_ahead="on", route="exact"), backend)
    assert "--windows-ahead on has no effect: --route exact computes as mlx-lm does." in plan.notices


def test_compiling_takes_a_word(manager: PluginManager, backend: BackendFacts) -> None:
    assert select("toy", manager, filled(), backend).compiled_decode == "auto"
    assert select("toy", manager, filled(compiled_decode="off"), backend).compiled_decode == "off"
    lever = load_settings([SelectionSettings], env={"PHYLA_COMPILED_DECODE": "1"})
    assert select("toy", manager, lever, backend).compiled_decode == "on"
