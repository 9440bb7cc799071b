"""Encoded keys and values with everything a request may ask for, through the library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import phyla
import pytest
from phyla.engine.answers import Completion
from phyla.testing.tiny import tiny_checkpoint
from phyla.testing.tiny.configs import tiny_config
from phyla.testing.tiny.qwen35 import qwen35_config

from tests.compat.matrix import cell

PROMPT = [3 + index * 7 % 200 for index in range(40)]
OTHER = [5 + index * 11 % 200 for index in range(23)]
GREEDY: dict[str, Any] = {"max_tokens": 12}
SEEDED: dict[str, Any] = {**GREEDY, "temperature": 1.0, "seed": 7}
NEVER_TOO_LONG = 10**6
SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}

Folder = Callable[[dict[str, Any]], Path]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return lambda config: tiny_checkpoint(tmp_path / "model", config)


@pytest.fixture
def llama(folder: Folder) -> Path:
    return folder(tiny_config("llama", num_hidden_layers=2))


@contextmanager
def loaded(path: Path, spec: str, **options: Any) -> Iterator[phyla.Model]:
    # No step is ever too long: how a prompt is cut must not depend on the clock, since another cut moves low bits, and
    # those a code now and then.
    with phyla.load(str(path), kv_scheme=spec, step_ms=NEVER_TOO_LONG, **options) as model:
        assert any(identity != "plain" for identity in model.plan.layer_schemes)
        yield model


def by_itself(path: Path, spec: str, prompt: list[int], family: str = "auto", **options: Any) -> Completion:
    with loaded(path, spec, batch=1, prompt_cache=0, family=family) as model:
        return model.generate(prompt, **options)


def in_company(path: Path, spec: str, prompt: list[int], **options: Any) -> Completion:
    """The answer of a row that shares its steps with another."""
    with loaded(path, spec, batch=4) as model:
        company = model.stream(OTHER, max_tokens=400)
        next(company)
        answer = model.generate(prompt, **options)
        company.close()  # type: ignore[attr-defined]
    assert answer.usage.lane.startswith("batched")
    return answer


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param("affine:8", marks=cell("affine", "batch")),
        pytest.param("turboquant", marks=cell("turboquant", "batch")),
    ],
)
def test_a_row_gets_in_company_what_it_gets_alone(llama: Path, spec: str) -> None:
    assert in_company(llama, spec, PROMPT, **GREEDY).token_ids == by_itself(llama, spec, PROMPT, **GREEDY).token_ids


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param("affine:8", marks=cell("affine", "seed")),
        pytest.param("turboquant", marks=cell("turboquant", "seed")),
    ],
)
def test_a_seed_draws_the_same_tokens(llama: Path, spec: str) -> None:
    assert in_company(llama, spec, PROMPT, **SEEDED).token_ids == by_itself(llama, spec, PROMPT, **SEEDED).token_ids


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param("affine:8", marks=cell("affine", "logprobs")),
        pytest.param("turboquant", marks=cell("turboquant", "logprobs")),
    ],
)
def test_logprobs_are_reported_of_each_token(llama: Path, spec: str) -> None:
    wanted = {**GREEDY, "logprobs": True, "top_logprobs": 2}
    got, want = (ask(llama, spec, PROMPT, **wanted).logprobs for ask in (in_company, by_itself))
    assert got is not None
    assert want is not None
    assert len(got) == len(want) == GREEDY["max_tokens"]
    assert max(abs(one.logprob - other.logprob) for one, other in zip(got, want, strict=True)) < 2e-3


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param("affine:8", marks=cell("affine", "prefix")),
        pytest.param("affine:4s30", marks=cell("affine", "prefix")),
        pytest.param("turboquant", marks=cell("turboquant", "prefix")),
    ],
)
def test_a_prompt_is_read_once(llama: Path, spec: str) -> None:
    with loaded(llama, spec) as model:
        cold, warm = (model.generate(PROMPT, **GREEDY) for _ in range(2))
        turn = model.generate([*PROMPT, *cold.token_ids, 9, 8, 7], **GREEDY)
    assert warm.usage.num_cached_tokens == len(PROMPT) - 1
    assert warm.token_ids == cold.token_ids
    # The last token of an answer is never computed.
    assert turn.usage.num_cached_tokens == len(PROMPT) + GREEDY["max_tokens"] - 1


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param("affine:8", marks=cell("affine", "cancel")),
        pytest.param("turboquant", marks=cell("turboquant", "cancel")),
    ],
)
def test_a_cancelled_row_leaves_the_next_as_it_would_be(llama: Path, spec: str) -> None:
    with loaded(llama, spec) as model:
        cancelled = model.stream(OTHER, max_tokens=400)
        next(cancelled)
        cancelled.close()  # type: ignore[attr-defined]
        assert model.generate(PROMPT, **GREEDY).token_ids == by_itself(llama, spec, PROMPT, **GREEDY).token_ids


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param("affine:8", marks=cell("affine", "n-gram drafts")),
        pytest.param("turboquant", marks=cell("turboquant", "n-gram drafts")),
    ],
)
def test_drafts_change_no_token(llama: Path, spec: str) -> None:
    prompt = PROMPT[:10] * 4
    with loaded(llama, spec, method="ngram", draft_adaptive="off") as model:
        drafted = model.generate(prompt, max_tokens=30)
    assert drafted.usage.speculation is not None
    assert drafted.usage.speculation["accepted"] > 0
    assert drafted.token_ids == by_itself(llama, spec, prompt, max_tokens=30).token_ids


@pytest.mark.parametrize(
    ("spec", "schemes"),
    [
        pytest.param("affine:8", ("affine:8", "affine:8"), marks=cell("affine", "sliding layers")),
        pytest.param(
            "turboquant", ("plain", "turboquant:k8v3"), marks=cell("turboquant", "models with sliding layers")
        ),
        pytest.param("sliding=turboquant", (), marks=cell("turboquant", "sliding layers")),
    ],
)
def test_sliding_layers_are_stored_or_stay_plain(folder: Folder, spec: str, schemes: tuple[str, ...]) -> None:
    path = folder(tiny_config("llama", num_hidden_layers=2, **SLIDING))
    with loaded(path, spec, batch=4) as model:
        assert model.plan.layer_schemes == schemes
    assert in_company(path, spec, PROMPT, **GREEDY).token_ids == by_itself(path, spec, PROMPT, **GREEDY).token_ids


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param("affine:8", marks=cell("affine", "universal")),
        pytest.param("affine:4", marks=cell("affine", "universal")),
        pytest.param("turboquant:k8v8", marks=cell("turboquant", "universal")),
    ],
)
@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_plain_decoders(folder: Folder, spec: str, model_type: str) -> None:
    path = folder(tiny_config(model_type, num_hidden_layers=2))
    assert len(by_itself(path, spec, PROMPT, **GREEDY).token_ids) == GREEDY["max_tokens"]


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param("affine:8", marks=cell("affine", "qwen35")),
        pytest.param("turboquant", marks=cell("turboquant", "qwen35")),
    ],
)
def test_hybrid_layers_keep_their_own_state(folder: Folder, spec: str) -> None:
    path = folder(qwen35_config())
    assert in_company(path, spec, PROMPT, **GREEDY).token_ids == by_itself(path, spec, PROMPT, **GREEDY).token_ids
    with loaded(path, spec) as model:
        cold, warm = (model.generate(PROMPT, **GREEDY) for _ in range(2))
    assert warm.usage.num_cached_tokens > 0
    assert warm.token_ids == cold.token_ids


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param("affine:8", marks=cell("affine", "minicpm5")),
        pytest.param("turboquant", marks=cell("turboquant", "minicpm5")),
    ],
)
def test_minicpm_goes_on_from_what_it_stored(folder: Folder, spec: str) -> None:
    path = folder(tiny_config("llama", head_dim=128, rope_theta=5e6))
    with loaded(path, spec, family="minicpm5") as model:
        assert model.plan.family.name == "minicpm5"
        got = model.generate(PROMPT, **GREEDY)
        again = model.generate(PROMPT, **GREEDY)
    assert again.usage.num_cached_tokens == len(PROMPT) - 1
    assert again.token_ids == got.token_ids


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param("affine:8", marks=cell("affine", "mlxlm")),
        pytest.param("turboquant", marks=cell("turboquant", "mlxlm")),
    ],
)
def test_caches_that_mlx_lm_keeps_are_its_own(folder: Folder, spec: str) -> None:
    by_itself(folder(tiny_config("llama", num_hidden_layers=2)), spec, PROMPT, family="mlxlm")
