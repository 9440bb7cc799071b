"""`phyla explain` on a real folder, and `phyla doctor` on this machine."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

from phyla.testing.tiny import tiny_checkpoint
from phyla.testing.toy import ToyConfig, toy_config, toy_shapes

from tests.core.cli.conftest import RunPhyla


def test_the_layout_is_listed_layer_by_layer(phyla: RunPhyla, toy_folder: Path) -> None:
    ran = phyla("explain", str(toy_folder))
    assert ran.status == 0, ran.err
    rows = [line.split() for line in ran.out.splitlines()]
    assert ["1", "sliding", "8", "keys", "2x16,", "values", "2x16", "plain", "256"] in rows


def test_the_cache_is_counted_per_token(phyla: RunPhyla, toy_folder: Path) -> None:
    # Two full layers: keys and values of 2 heads of 16 float32 numbers. The sliding one holds 8 tokens at most.
    out = phyla("explain", str(toy_folder)).out
    assert "Cache: 512 bytes per token, 2.10 MB for a row of 4096 tokens" in out


def test_each_choice_says_who_and_why(phyla: RunPhyla, toy_folder: Path) -> None:
    out = phyla("explain", str(toy_folder), "--dtype", "bfloat16", env={"PHYLA_SELECTION__ROUTE": "exact"}).out
    assert "(flag: asked for with --dtype)" in out
    assert "(auto: --route exact keeps the checkpoint's own form)" in out
    assert "Route exact, prefill in chunks of 2048 tokens" in out


def test_the_fast_route_says_what_it_computes_with_and_what_is_not_measured(phyla: RunPhyla, toy_folder: Path) -> None:
    out = phyla("explain", str(toy_folder), "--strategy", "attention=grouped", "--strategy-table", "none").out
    assert "Fast route, 8 rows (shipped table" in out
    rows = [" ".join(line.split()) for line in out.splitlines()]
    assert "Attention grouped (asked for with --strategy)" in rows
    assert "Quantised product dense (the weights aren't quantised in memory)" in rows


def test_a_batch_of_one_never_takes_the_fast_route(phyla: RunPhyla, toy_folder: Path) -> None:
    assert "Fast route: never taken (--batch 1)" in phyla("explain", str(toy_folder), "--batch", "1").out


def test_a_strategy_that_cannot_run_is_a_usage_error(phyla: RunPhyla, toy_folder: Path) -> None:
    ran = phyla("explain", str(toy_folder), "--strategy", "qmm=split16")
    assert ran.status == 2
    assert "isn't quantised" in ran.err


def test_plugins_report(phyla: RunPhyla, toy_folder: Path) -> None:
    assert "toy has wheels" in phyla("explain", str(toy_folder)).out


def test_what_was_accepted_without_effect_is_listed(phyla: RunPhyla, toy_folder: Path) -> None:
    out = phyla("explain", str(toy_folder), env={"PHYLA_BATCH_EXTEND": "1"}).out
    assert "PHYLA_BATCH_EXTEND is accepted" in out


def test_tensors_that_do_not_fit_are_refused_from_their_headers(phyla: RunPhyla, tmp_path: Path) -> None:
    config = toy_config("F")
    shapes = toy_shapes(ToyConfig.from_dict(config))
    name = next(iter(shapes))
    half = tiny_checkpoint(tmp_path / "half", config, shapes={**shapes, name: (3, 5)}, tokenizer=False)
    ran = phyla("explain", str(half))
    assert ran.status == 1
    assert f"shape: {name} is (3, 5)" in ran.err


def test_a_model_that_is_not_there_is_an_error(phyla: RunPhyla) -> None:
    ran = phyla("explain", "nowhere/at-all")
    assert ran.status == 1
    assert "phyla get nowhere/at-all" in ran.err


def test_a_scheme_that_is_not_there_names_what_is(phyla: RunPhyla, toy_folder: Path) -> None:
    ran = phyla("explain", str(toy_folder), "--kv-scheme", "plane")
    assert ran.status == 2
    assert "Did you mean 'plain'?" in ran.err


def test_doctor_reports_the_device_and_the_plugins(phyla: RunPhyla) -> None:
    out = phyla("doctor").out
    assert "MLX " in out
    assert "2 plugins loaded of 2" in out


def test_doctor_names_a_broken_plugin(phyla: RunPhyla, plugin: Callable[[str, str], EntryPoint]) -> None:
    ran = phyla("doctor", more=(plugin("broken", "raise ValueError('on purpose')\n"),))
    assert ran.status == 1
    assert "PROBLEM Plugin 'broken'" in ran.out
