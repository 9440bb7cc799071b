"""The checked-in quality of the schemes, held to what their pages declare."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.kv_quality import SPECS, TEXT
from benchmarks.measurement import RESULTS


@pytest.fixture(scope="module")
def schemes() -> dict[str, dict[str, Any]]:
    result: dict[str, dict[str, Any]] = json.loads((RESULTS / "kv_quality.json").read_text("utf-8"))["schemes"]
    return result


def test_the_whole_grid_was_measured(schemes: dict[str, dict[str, Any]]) -> None:
    assert list(schemes) == ["plain", *(spec.removesuffix("+fused") for spec in SPECS)]


def test_eight_bit_affine_keeps_the_perplexity_within_half_a_percent(schemes: dict[str, dict[str, Any]]) -> None:
    assert abs(schemes["affine:8"]["perplexity_change_percent"]) <= 0.5


def test_k8v3_keeps_the_bound_its_page_declares(schemes: dict[str, dict[str, Any]]) -> None:
    one = schemes["turboquant:k8v3"]
    assert one["times_smaller"] == 2.56
    assert one["mean_kl_nats"] <= 0.05
    assert abs(one["perplexity_change_percent"]) <= 4


def test_fewer_bits_never_predict_better(schemes: dict[str, dict[str, Any]]) -> None:
    divergences = [schemes[f"turboquant:k8v{bits}"]["mean_kl_nats"] for bits in (8, 4, 3, 2)]
    assert divergences == sorted(divergences)


def test_the_text_is_long_enough() -> None:
    assert len(TEXT.read_text("utf-8")) > 40_000
