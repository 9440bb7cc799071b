"""Draft methods with everything a request may ask for: the tokens of plain decoding, with drafts that were right."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import phyla
import pytest
from phyla.engine.answers import Completion
from phyla.testing.tiny import tiny_checkpoint
from phyla.testing.tiny.configs import tiny_config
from phyla.testing.tiny.mtp import companion_config, head_shapes
from phyla.testing.tiny.qwen35 import qwen35_config

from tests.compat.matrix import cell
from tests.few_words import WORDS, of_few_words

PROMPT = [10, 17, 24, 10, 17, 24, *(40 + index * 7 % 200 for index in range(30)), 10, 17]
OTHER = [5 + index * 11 % 200 for index in range(23)]
GREEDY: dict[str, Any] = {"max_tokens": 24, "ignore_eos": True}
SEEDED: dict[str, Any] = {**GREEDY, "temperature": 1.0, "top_k": len(WORDS), "seed": 7}
REPORTED: dict[str, Any] = {**GREEDY, "logprobs": True, "top_logprobs": 3}
PENALISED: dict[str, Any] = {**GREEDY, "repetition_penalty": 1.3, "frequency_penalty": 0.5}

Folders = dict[str, Path]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    models = tmp_path_factory.mktemp("models")
    qwen35 = qwen35_config(num_hidden_layers=4)
    head = companion_config(qwen35)
    return {
        "llama": of_few_words(tiny_checkpoint(models / "llama", tiny_config("llama", num_hidden_layers=2))),
        "minicpm5": of_few_words(
            tiny_checkpoint(models / "minicpm5", tiny_config("llama", head_dim=128, rope_theta=5e6))
        ),
        "qwen35": of_few_words(tiny_checkpoint(models / "qwen35", qwen35)),
        "head": tiny_checkpoint(models / "head", head, shapes=head_shapes(head), tokenizer=False),
    }


def target_of(method: str) -> str:
    return "qwen35" if method == "mtp" else "llama"


@contextmanager
def drafting(folders: Folders, method: str, target: str = "", **options: Any) -> Iterator[phyla.Model]:
    """A model that drafts; with two models the target is its own drafter, so that drafts are right."""
    target = target or target_of(method)
    drafter = {"ngram": None, "two-model": target, "mtp": "head"}[method]
    named = {} if drafter is None else {"draft_model": str(folders[drafter])}
    with phyla.load(str(folders[target]), method=method, draft_adaptive="off", **named, **options) as model:
        yield model


def plainly(folders: Folders, target: str, prompt: list[int], request: dict[str, Any], **options: Any) -> Completion:
    with phyla.load(str(folders[target]), batch=1, prompt_cache=0, **options) as model:
        return model.generate(prompt, **request)


def accepted(answer: Completion) -> int:
    assert answer.usage.speculation is not None
    return int(answer.usage.speculation["accepted"])


@pytest.mark.parametrize(
    ("method", "wanted"),
    [
        pytest.param("ngram", SEEDED, marks=cell("ngram", "seed")),
        pytest.param("ngram", REPORTED, marks=cell("ngram", "logprobs")),
        pytest.param("ngram", PENALISED, marks=cell("ngram", "penalties")),
        pytest.param("two-model", SEEDED, marks=cell("two-model", "seed")),
        pytest.param("two-model", REPORTED, marks=cell("two-model", "logprobs")),
        pytest.param("two-model", PENALISED, marks=cell("two-model", "penalties")),
        pytest.param("mtp", SEEDED, marks=cell("mtp", "seed")),
        pytest.param("mtp", REPORTED, marks=cell("mtp", "logprobs")),
        pytest.param("mtp", PENALISED, marks=cell("mtp", "penalties")),
    ],
)
def test_every_way_to_choose_tokens_chooses_the_same(folders: Folders, method: str, wanted: dict[str, Any]) -> None:
    want = plainly(folders, target_of(method), PROMPT, wanted)
    with drafting(folders, method) as model:
        got = model.generate(PROMPT, **wanted)
    assert accepted(got) > 0
    assert got.token_ids == want.token_ids
    assert top_ids(got) == top_ids(want)


def top_ids(answer: Completion) -> list[list[int]]:
    return [[token_id for token_id, _ in one.top] for one in answer.logprobs or ()]


@pytest.mark.parametrize(
    "method",
    [
        pytest.param("ngram", marks=cell("ngram", "stop strings")),
        pytest.param("two-model", marks=cell("two-model", "stop strings")),
        pytest.param("mtp", marks=cell("mtp", "stop strings")),
    ],
)
def test_a_stop_string_ends_the_answer_where_it_does_without(folders: Folders, method: str) -> None:
    free = plainly(folders, target_of(method), PROMPT, GREEDY)
    stop = free.text[len(free.text) // 2 :][:2]
    want = plainly(folders, target_of(method), PROMPT, {**GREEDY, "stop": stop})
    with drafting(folders, method) as model:
        got = model.generate(PROMPT, stop=stop, **GREEDY)
    assert accepted(got) > 0
    assert (got.text, got.finish_reason, got.stop_string) == (want.text, "stop", stop)
    assert got.usage.num_completion_tokens == want.usage.num_completion_tokens


@pytest.mark.parametrize(
    "method",
    [
        pytest.param("ngram", marks=[cell("ngram", "batch"), cell("ngram", "cancel")]),
        pytest.param("two-model", marks=[cell("two-model", "batch"), cell("two-model", "cancel")]),
        pytest.param("mtp", marks=[cell("mtp", "batch"), cell("mtp", "cancel")]),
    ],
)
def test_a_row_gets_beside_one_that_is_cancelled_what_it_gets_alone(folders: Folders, method: str) -> None:
    want = plainly(folders, target_of(method), PROMPT, GREEDY)
    with drafting(folders, method, batch=4) as model:
        company = model.stream(OTHER, max_tokens=400, ignore_eos=True)
        next(company)
        pieces = model.stream(PROMPT, **GREEDY)
        first = next(pieces)
        company.close()  # type: ignore[attr-defined]
        rest = list(pieces)
        again = model.generate(PROMPT, **GREEDY)
    ids = [piece.token_id for piece in [first, *rest] if piece.token_id is not None]
    assert rest[-1].usage is not None
    assert rest[-1].usage.lane == "batched+spec"
    assert accepted(again) > 0
    assert tuple(ids) == want.token_ids == again.token_ids


@pytest.mark.parametrize(
    "method",
    [
        pytest.param("ngram", marks=cell("ngram", "prefix")),
        pytest.param("two-model", marks=cell("two-model", "prefix")),
        pytest.param("mtp", marks=cell("mtp", "prefix")),
    ],
)
def test_the_next_turn_goes_on_from_the_one_before(folders: Folders, method: str) -> None:
    with drafting(folders, method) as model:
        first = model.generate(PROMPT, **GREEDY)
        turn = [*PROMPT, *first.token_ids, 10, 17]
        got = model.generate(turn, **GREEDY)
    assert got.usage.num_cached_tokens == len(turn) - 3
    assert accepted(got) > 0
    assert got.usage.speculation is not None
    assert "reason" not in got.usage.speculation
    assert got.token_ids == plainly(folders, target_of(method), turn, GREEDY).token_ids


@pytest.mark.parametrize(
    ("method", "scheme"),
    [
        pytest.param("two-model", "affine:8", marks=cell("two-model", "affine")),
        pytest.param("two-model", "turboquant", marks=cell("two-model", "turboquant")),
        pytest.param("mtp", "affine:8", marks=cell("mtp", "affine")),
        pytest.param("mtp", "turboquant", marks=cell("mtp", "turboquant")),
    ],
)
def test_encoded_keys_and_values_give_the_same_with_drafts(folders: Folders, method: str, scheme: str) -> None:
    want = plainly(folders, target_of(method), PROMPT, GREEDY, kv_scheme=scheme)
    with drafting(folders, method, kv_scheme=scheme) as model:
        got = model.generate(PROMPT, **GREEDY)
    assert accepted(got) > 0
    assert got.token_ids == want.token_ids


@pytest.mark.parametrize(
    ("method", "family"),
    [
        pytest.param("ngram", "llama", marks=cell("ngram", "universal")),
        pytest.param("ngram", "minicpm5", marks=cell("ngram", "minicpm5")),
        pytest.param("two-model", "llama", marks=cell("two-model", "universal")),
        pytest.param("two-model", "qwen35", marks=cell("two-model", "qwen35")),
        pytest.param("two-model", "minicpm5", marks=cell("two-model", "minicpm5")),
        pytest.param("mtp", "qwen35", marks=cell("mtp", "qwen35")),
        pytest.param("mtp", "llama", marks=cell("mtp", "universal")),
        pytest.param("mtp", "minicpm5", marks=cell("mtp", "minicpm5")),
    ],
)
def test_families_are_drafted_for(folders: Folders, method: str, family: str) -> None:
    named = {"family": "minicpm5"} if family == "minicpm5" else {}
    with drafting(folders, method, family, **named) as model:
        got = model.generate(PROMPT, **GREEDY)
    assert accepted(got) > 0
    assert got.token_ids == plainly(folders, family, PROMPT, GREEDY, **named).token_ids


@pytest.mark.parametrize(
    "method",
    [
        pytest.param("ngram", marks=cell("ngram", "mlxlm")),
        pytest.param("two-model", marks=cell("two-model", "mlxlm")),
        pytest.param("mtp", marks=cell("mtp", "mlxlm")),
    ],
)
def test_models_over_the_bridge_are_drafted_for_alone_and_in_company(folders: Folders, method: str) -> None:
    target = target_of(method)
    want = plainly(folders, target, PROMPT, GREEDY, family="mlxlm")
    with drafting(folders, method, family="mlxlm", batch=4) as model:
        got = model.generate(PROMPT, **GREEDY)
        company = model.stream(OTHER, max_tokens=400, ignore_eos=True)
        next(company)
        together = model.generate(PROMPT, **GREEDY)
        company.close()  # type: ignore[attr-defined]
    assert accepted(got) > 0
    assert together.usage.lane == "batched+spec"
    assert got.token_ids == together.token_ids == want.token_ids
