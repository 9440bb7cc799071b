"""The checked-in quality and speed of the schemes, held to what their pages declare."""

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


@pytest.mark.parametrize(
    ("model", "shares"),
    [
        ("llama-8b", {"affine:8": (0.4, 0.5), "affine:4": (0.44, 0.6), "turboquant:k8v3": (0.2, 0.3)}),
        ("smollm2-135m", {"affine:8": (0.6, 0.75), "affine:4": (0.6, 0.75), "turboquant:k8v3": (0.4, 0.55)}),
    ],
)
def test_schemes_decode_at_the_share_of_plain_speed_that_the_page_says(
    model: str, shares: dict[str, tuple[float, float]]
) -> None:
    speeds = {name: one["decode_tokens_per_second"] for name, one in measured(f"kv_speed_{model}")["summary"].items()}
    for name, (least, most) in shares.items():
        assert least <= speeds[name] / speeds["plain"] <= most, name
    assert speeds["affine:4"] >= speeds["affine:8"] > speeds["turboquant:k8v3"]


def test_eight_thousand_tokens_of_the_text_were_read() -> None:
    result = measured("kv_quality")
    assert result["num_tokens"] == 8192
    assert result["text_sha256"] == hashlib.sha256(TEXT.read_bytes()).hexdigest()


def test_the_text_is_long_enough() -> None:
    assert len(TEXT.read_text("utf-8")) > 40_000


def measured(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    return result
