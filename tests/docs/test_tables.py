"""Measured tables in the docs are what the checked-in result files say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.measurement import RESULTS, interval_95
from benchmarks.tables import PAGES, ROOT, TABLES, filled

STARTER = "starter_vs_mlx_lm"


@pytest.mark.parametrize("page", PAGES)
def test_the_tables_of_a_page_are_those_of_the_result_files(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    assert "<!-- measured: " in text
    assert filled(text) == text, "run make docs"


@pytest.mark.parametrize("name", sorted(TABLES))
def test_a_result_says_how_it_was_made(name: str) -> None:
    result = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    assert result["command"].startswith(f"python -m benchmarks.{result_script(name)}")
    assert result["machine"]["cores"] > 0
    assert result["versions"]["mlx"]


def result_script(name: str) -> str:
    """A script measured on several models keeps one file for each: `kv_speed_llama-8b`."""
    scripts = ("exact_route", "kv_speed", "kv_quality")
    return next((script for script in scripts if name.startswith(f"{script}_")), name)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_summary_follows_from_its_samples(phase: str) -> None:
    result = json.loads((RESULTS / f"{STARTER}.json").read_text("utf-8"))
    ratios = [one["phyla"][phase] / one["mlx_lm"][phase] for one in result["samples"]]
    low, high = interval_95(ratios)
    assert result["summary"][phase]["ratio"] == round(sum(ratios) / len(ratios), 2)
    assert result["summary"][phase]["ratio_interval_95"] == [round(low, 2), round(high, 2)]


@pytest.mark.parametrize(("phase", "goal"), [("prefill", 15), ("decode", 1.6)])
def test_the_checked_in_starter_reaches_its_goal(phase: str, goal: float) -> None:
    result = json.loads((RESULTS / f"{STARTER}.json").read_text("utf-8"))
    assert result["summary"][phase]["ratio_interval_95"][1] >= goal


@pytest.mark.parametrize("clients", ["1", "8"])
def test_the_checked_in_server_cost_reaches_its_goal(clients: str) -> None:
    result = json.loads((RESULTS / "server_cost.json").read_text("utf-8"))
    assert result["summary"][clients]["added_interval_95"][1] <= 0.3


def test_the_checked_in_second_turn_reaches_its_goal() -> None:
    result = json.loads((RESULTS / "prefix_starter.json").read_text("utf-8"))
    assert result["summary"]["ratio_interval_95"][0] >= 20
    assert result["summary"]["lookup_ms"] <= 0.2


def test_the_checked_in_sessions_read_their_system_prompt_once() -> None:
    sessions = json.loads((RESULTS / "prefix_starter.json").read_text("utf-8"))["sessions"]
    num_own = sessions["num_prompt_tokens"] - sessions["num_sessions"] * sessions["num_shared_tokens"]
    # The last token of each prompt is the first step's input, and not prefilled.
    assert sessions["num_prefilled_tokens"] == sessions["num_shared_tokens"] + num_own - sessions["num_sessions"]


def test_the_checked_in_server_starts_in_time() -> None:
    result = json.loads((RESULTS / "serve_start.json").read_text("utf-8"))
    assert max(one["ready_seconds"] for one in result["serve"]) <= 8
    assert result["make_serve"]["answered_seconds"] <= 300


def test_a_page_without_marks_stays_as_it_is() -> None:
    assert filled("# Nothing measured\n") == "# Nothing measured\n"


def test_results_hold_no_paths_of_the_machine_they_were_made_on() -> None:
    texts = [path.read_text("utf-8") for path in Path(RESULTS).glob("*.json")]
    assert not any("/home/" in text or "/tmp/" in text or "/root/" in text for text in texts)
