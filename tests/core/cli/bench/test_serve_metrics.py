"""The figures of a load against numbers worked out by hand, and percentiles against numpy's."""

from __future__ import annotations

import random

import numpy as np
import pytest
from phyla.cli.bench.load import Answered
from phyla.cli.bench.serve_metrics import parse_goodput, percentile, serve_metrics
from phyla.errors import UsageError

ANSWERS = [
    Answered(num_input=10, num_output=5, ttft=0.1, latency=0.5, gaps=[0.1, 0.3]),
    Answered(num_input=20, num_output=3, ttft=0.3, latency=0.7, gaps=[0.2, 0.2]),
    Answered(num_input=30, num_output=1, ttft=0.2, latency=0.2),
    Answered(num_input=99, error="gone"),
]
GOALS = {"ttft": 250.0, "tpot": 150.0}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("completed", 3),
        ("failed", 1),
        ("total_input_tokens", 60),
        ("total_output_tokens", 9),
        ("request_throughput", 3 / 2),
        ("output_throughput", 9 / 2),
        ("total_token_throughput", 69 / 2),
        # The second's first token is late.
        ("request_goodput", 2 / 2),
        ("mean_ttft_ms", 200.0),
        ("median_ttft_ms", 200.0),
        ("std_ttft_ms", 1000 * (0.02 / 3) ** 0.5),
        ("p50_ttft_ms", 200.0),
        ("p90_ttft_ms", 280.0),
        # 0.4 s over 4 tokens, 0.4 s over 2; the answer of one token has none.
        ("mean_tpot_ms", 150.0),
        ("median_tpot_ms", 150.0),
        ("std_tpot_ms", 50.0),
        ("p99_tpot_ms", 199.0),
        # Pieces of text, not tokens: 0.1, 0.2, 0.2, 0.3.
        ("mean_itl_ms", 200.0),
        ("p95_itl_ms", 285.0),
        ("mean_e2el_ms", 1400 / 3),
        ("p90_e2el_ms", 660.0),
    ],
)
def test_a_figure_is_what_its_formula_gives(name: str, expected: float) -> None:
    assert serve_metrics(ANSWERS, 2.0, GOALS)[name] == pytest.approx(expected)


def test_every_spread_has_every_figure() -> None:
    figures = ("mean", "median", "std", "p50", "p90", "p95", "p99")
    expected = {f"{figure}_{name}_ms" for figure in figures for name in ("ttft", "tpot", "itl", "e2el")}
    assert {name for name in serve_metrics(ANSWERS, 2.0, {}) if name.endswith("_ms")} == expected


def test_without_goals_there_is_no_goodput() -> None:
    assert serve_metrics(ANSWERS, 2.0, {})["request_goodput"] is None


def test_answers_of_one_token_have_no_time_per_token() -> None:
    assert serve_metrics(ANSWERS[2:3], 2.0, {})["mean_tpot_ms"] == 0.0


@pytest.mark.parametrize("percent", [0, 1, 50, 90, 95, 99, 100])
@pytest.mark.parametrize("count", [1, 2, 7, 100])
def test_percentiles_are_numpys(percent: float, count: int) -> None:
    drawn = random.Random(count)
    values = [drawn.random() for _ in range(count)]
    assert percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)))


def test_goals_are_read_from_one_word_or_several() -> None:
    assert parse_goodput(["ttft:200 tpot:50", "e2el:2e3"]) == {"ttft": 200.0, "tpot": 50.0, "e2el": 2000.0}
    assert parse_goodput([]) == {}


@pytest.mark.parametrize("word", ["ttft", "ttft:", "ttft:soon", "itl:5", "ttft:0", "ttft:-1", "ttft:nan", ":5"])
def test_a_goal_that_cannot_be_met_or_read_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="--goodput"):
        parse_goodput([word])
