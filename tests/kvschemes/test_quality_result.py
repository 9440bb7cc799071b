"""The checked-in quality of the schemes, held to what their pages declare."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from benchmarks.kv_quality import SPECS, TEXT
from benchmarks.measurement import RESULTS

Schemes = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def schemes() -> Schemes:
    return measured("kv_quality")["schemes"]


def test_the_whole_grid_was_measured(schemes: Schemes) -> None:
    assert list(schemes) == ["plain", *(spec.removesuffix("+fused") for spec in SPECS)]


def test_eight_bit_affine_keeps_the_perplexity_within_half_a_percent(schemes: Schemes) -> None:
    assert abs(schemes["affine:8"]["perplexity_change_percent"]) <= 0.5


def test_k8v3_keeps_the_bound_its_page_declares(schemes: Schemes) -> None:
    one = schemes["turboquant:k8v3"]
    assert one["times_smaller"] == 2.56
    assert one["mean_kl_nats"] <= 0.04
    assert abs(one["perplexity_change_percent"]) <= 3


def test_fewer_bits_never_predict_better(schemes: Schemes) -> None:
    divergences = [schemes[f"turboquant:k8v{bits}"]["mean_kl_nats"] for bits in (8, 4, 3, 2)]
    assert divergences == sorted(divergences)


def test_eight_thousand_tokens_of_the_text_were_read() -> None:
    result = measured("kv_quality")
    assert result["num_tokens"] == 8192
    assert result["text_sha256"] == hashlib.sha256(TEXT.read_bytes()).hexdigest()


def test_the_text_is_long_enough() -> None:
    assert len(TEXT.read_text("utf-8")) > 40_000


def measured(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    return result
