"""Answers bound to a schema, with everything else a request may ask for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import phyla
import pytest
from phyla.request import ConstraintSpec
from phyla.testing.tiny import tiny_checkpoint
from phyla.testing.tiny.configs import tiny_config

from tests.compat.matrix import cell

SCHEMA = {
    "type": "object",
    "properties": {
        "color": {"enum": ["red", "green", "blue"]},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 5},
    },
    "required": ["color", "sizes"],
    "additionalProperties": False,
}
PROMPT = [10 + index * 7 % 200 for index in range(40)]
BOUND: dict[str, Any] = {"constraint": ConstraintSpec("json_schema", json.dumps(SCHEMA), compact=True)}
SAMPLED: dict[str, Any] = {**BOUND, "temperature": 1.0, "seed": 5, "max_tokens": 120}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("models") / "llama", tiny_config("llama", num_hidden_layers=2))


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[phyla.Model]:
    with phyla.load(str(folder), proposer="llguidance", batch=4) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def plain(folder: Path) -> Iterator[phyla.Model]:
    with phyla.load(str(folder), proposer="llguidance", batch=1, prompt_cache=0) as loaded:
        yield loaded


def is_kept(text: str) -> bool:
    value = json.loads(text)
    return set(value) == {"color", "sizes"} and value["color"] in ("red", "green", "blue") and len(value["sizes"]) <= 5


@cell("grammar", "seed")
def test_a_seed_gives_the_same_answer_again(model: phyla.Model) -> None:
    first, again = model.generate(PROMPT, **SAMPLED), model.generate(PROMPT, **SAMPLED)
    assert first.token_ids == again.token_ids
    assert is_kept(first.text)


@cell("grammar", "batch")
def test_rows_keep_to_their_own_schema_in_company(model: phyla.Model, plain: phyla.Model) -> None:
    choice = {**SAMPLED, "constraint": ConstraintSpec("choice", '["yes, of course", "no, not at all"]')}
    free = {"temperature": 1.0, "seed": 9, "max_tokens": 30, "ignore_eos": True}
    asked = [SAMPLED, choice, free, {**SAMPLED, "seed": 6}]
    with ThreadPoolExecutor(len(asked)) as pool:
        heard = list(pool.map(lambda one: model.generate(PROMPT, **one), asked))
    assert [one.token_ids for one in heard] == [plain.generate(PROMPT, **one).token_ids for one in asked]


@cell("grammar", "logprobs")
def test_log_probabilities_are_of_what_the_schema_allows(model: phyla.Model) -> None:
    answer = model.generate(PROMPT, **SAMPLED, logprobs=True, top_logprobs=3)
    assert answer.logprobs is not None
    assert len(answer.logprobs) == len(answer.token_ids)
    assert answer.token_ids == model.generate(PROMPT, **SAMPLED).token_ids


@cell("grammar", "stop strings")
def test_a_stop_string_ends_the_answer_first(model: phyla.Model) -> None:
    answer = model.generate(PROMPT, **SAMPLED, stop=['"sizes"'])
    assert answer.stop_string == '"sizes"'
    assert answer.text.endswith(",")


@cell("grammar", "stream")
def test_a_stream_says_the_same(model: phyla.Model) -> None:
    pieces = list(model.stream(PROMPT, **SAMPLED))
    assert "".join(piece.text for piece in pieces if not piece.special) == model.generate(PROMPT, **SAMPLED).text


@cell("grammar", "prefix")
def test_a_reused_prefix_gives_the_same_answer(model: phyla.Model, plain: phyla.Model) -> None:
    model.generate(PROMPT, **SAMPLED)
    answer = model.generate(PROMPT, **SAMPLED)
    assert answer.usage.num_cached_tokens > 0
    assert answer.token_ids == plain.generate(PROMPT, **SAMPLED).token_ids


@cell("grammar", "penalties")
def test_penalties_dont_lead_out_of_the_schema(model: phyla.Model) -> None:
    answer = model.generate(PROMPT, **SAMPLED, repetition_penalty=1.5, frequency_penalty=1.0)
    assert answer.finish_reason == "length" or is_kept(answer.text)


@cell("grammar", "n-gram drafts")
def test_drafts_give_the_answer_of_plain_decoding(folder: Path, plain: phyla.Model) -> None:
    prompt = [*PROMPT, *plain.tokenizer.encode('{"color":"red","sizes":[1,1,1,1]}'), 10, 17]
    with phyla.load(str(folder), proposer="llguidance", method="ngram", draft_adaptive="off") as drafting:
        answer = drafting.generate(prompt, **SAMPLED)
    assert answer.usage.speculation is not None
    assert answer.token_ids == plain.generate(prompt, **SAMPLED).token_ids


@cell("grammar", "affine")
def test_quantised_keys_and_values_keep_the_schema(folder: Path) -> None:
    with phyla.load(str(folder), proposer="llguidance", kv_scheme="affine:8") as loaded:
        assert is_kept(loaded.generate(PROMPT, **SAMPLED).text)
