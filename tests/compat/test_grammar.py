"""Answers bound to a schema, with everything else a request may ask for.

Each test runs twice: token by token, and with forced spans proposed ahead.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import phyla
import pytest
from phyla.checkpoint.folder import FolderCheckpoint
from phyla.engine.answers import Completion
from phyla.request import ConstraintSpec
from phyla.testing.tiny import tiny_checkpoint
from phyla.testing.tiny.configs import tiny_config
from phyla.testing.tiny.mtp import companion_config, head_shapes
from phyla.testing.tiny.qwen35 import qwen35_config

from tests.compat.matrix import cell
from tests.few_words import of_few_words

SCHEMA = {
    "type": "object",
    "properties": {
        "preferred_color": {"enum": ["red", "green", "blue"]},
        "sizes_in_stock": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 5},
    },
    "required": ["preferred_color", "sizes_in_stock"],
    "additionalProperties": False,
}
PROMPT = [10 + index * 7 % 200 for index in range(40)]
BOUND: dict[str, Any] = {"constraint": ConstraintSpec("json_schema", json.dumps(SCHEMA), compact=True)}
SAMPLED: dict[str, Any] = {**BOUND, "temperature": 1.0, "seed": 5, "max_tokens": 160}
LETTERS = "abcd"
"""What models of few words say inside a tag, where drafts meet a target that is free to agree."""

TAGGED: dict[str, Any] = {
    **SAMPLED,
    "constraint": ConstraintSpec("regex", f'\\{{"tag":"[{LETTERS}]{{30}}"\\}}'),
    "top_k": len(LETTERS),
}
STEPPING: dict[str, Any] = {}
JUMPING: dict[str, Any] = {"grammar_jump": "on"}

Folders = Mapping[str, Path]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    models = tmp_path_factory.mktemp("models")
    qwen35 = qwen35_config(num_hidden_layers=4)
    head = companion_config(qwen35)
    return {
        "llama": tiny_checkpoint(models / "llama", tiny_config("llama", num_hidden_layers=2)),
        "qwen35": tiny_checkpoint(models / "qwen35", qwen35),
        "llama of letters": of_letters(tiny_checkpoint(models / "letters", tiny_config("llama", num_hidden_layers=2))),
        "qwen35 of letters": of_letters(tiny_checkpoint(models / "qwen35-letters", qwen35)),
        "head": tiny_checkpoint(models / "head", head, shapes=head_shapes(head), tokenizer=False),
    }


@pytest.fixture(scope="module", params=[STEPPING, JUMPING], ids=["stepping", "jumping"])
def way(request: pytest.FixtureRequest) -> dict[str, Any]:
    chosen: dict[str, Any] = request.param
    return chosen


@pytest.fixture(scope="module")
def model(folders: Folders, way: dict[str, Any]) -> Iterator[phyla.Model]:
    with phyla.load(str(folders["llama"]), proposer="llguidance", batch=4, **way) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def plain(folders: Folders) -> Iterator[phyla.Model]:
    with phyla.load(str(folders["llama"]), proposer="llguidance", batch=1, prompt_cache=0) as loaded:
        yield loaded


def of_letters(folder: Path) -> Path:
    tokenizer = FolderCheckpoint.open(folder).tokenizer()
    return of_few_words(folder, [tokenizer.encode(letter)[0] for letter in LETTERS])


def is_kept(text: str) -> bool:
    value = json.loads(text)
    return set(value) == set(SCHEMA["required"]) and len(value["sizes_in_stock"]) <= 5


def num_forced(answer: Completion) -> int:
    """Tokens that the grammar proposed and the model drew."""
    report = answer.usage.speculation or {}
    return int(report.get("bySource", {}).get("grammar", {}).get("accepted", 0))


@cell("grammar", "seed")
@cell("forced spans", "seed")
def test_a_seed_gives_the_same_answer_again(model: phyla.Model, plain: phyla.Model, way: dict[str, Any]) -> None:
    first, again = model.generate(PROMPT, **SAMPLED), model.generate(PROMPT, **SAMPLED)
    assert first.token_ids == again.token_ids == plain.generate(PROMPT, **SAMPLED).token_ids
    assert is_kept(first.text)
    assert (num_forced(first) > 0) == (way is JUMPING)


@cell("grammar", "batch")
@cell("forced spans", "batch")
def test_rows_keep_to_their_own_schema_in_company(model: phyla.Model, plain: phyla.Model) -> None:
    choice = {**SAMPLED, "constraint": ConstraintSpec("choice", '["yes, of course", "no, not at all"]')}
    free = {"temperature": 1.0, "seed": 9, "max_tokens": 30, "ignore_eos": True}
    asked = [SAMPLED, choice, free, {**SAMPLED, "seed": 6}]
    with ThreadPoolExecutor(len(asked)) as pool:
        heard = list(pool.map(lambda one: model.generate(PROMPT, **one), asked))
    assert [one.token_ids for one in heard] == [plain.generate(PROMPT, **one).token_ids for one in asked]


@cell("grammar", "logprobs")
@cell("forced spans", "logprobs")
def test_log_probabilities_are_of_what_the_schema_allows(model: phyla.Model, plain: phyla.Model) -> None:
    asked = {**SAMPLED, "logprobs": True, "top_logprobs": 3}
    answer, want = model.generate(PROMPT, **asked), plain.generate(PROMPT, **asked)
    assert answer.logprobs is not None
    assert want.logprobs is not None
    assert len(answer.logprobs) == len(answer.token_ids)
    assert [one.top[0][0] for one in answer.logprobs] == [one.top[0][0] for one in want.logprobs]
    assert answer.token_ids == model.generate(PROMPT, **SAMPLED).token_ids


@cell("grammar", "stop strings")
@cell("forced spans", "stop strings")
def test_a_stop_string_ends_the_answer_first(model: phyla.Model) -> None:
    answer = model.generate(PROMPT, **SAMPLED, stop=['"sizes'])
    assert answer.stop_string == '"sizes'
    assert answer.text.endswith(",")


@cell("grammar", "stream")
@cell("forced spans", "stream")
def test_a_stream_says_the_same(model: phyla.Model) -> None:
    pieces = list(model.stream(PROMPT, **SAMPLED))
    assert "".join(piece.text for piece in pieces if not piece.special) == model.generate(PROMPT, **SAMPLED).text


@cell("grammar", "prefix")
@cell("forced spans", "prefix")
def test_a_reused_prefix_gives_the_same_answer(model: phyla.Model, plain: phyla.Model) -> None:
    model.generate(PROMPT, **SAMPLED)
    answer = model.generate(PROMPT, **SAMPLED)
    assert answer.usage.num_cached_tokens > 0
    assert answer.token_ids == plain.generate(PROMPT, **SAMPLED).token_ids


@cell("grammar", "penalties")
@cell("forced spans", "penalties")
def test_penalties_dont_lead_out_of_the_schema(model: phyla.Model, plain: phyla.Model) -> None:
    asked = {**SAMPLED, "repetition_penalty": 1.5, "frequency_penalty": 1.0}
    answer = model.generate(PROMPT, **asked)
    assert answer.finish_reason == "length" or is_kept(answer.text)
    assert answer.token_ids == plain.generate(PROMPT, **asked).token_ids


@cell("grammar", "reasoning")
@cell("forced spans", "reasoning")
@pytest.mark.parametrize(
    ("template_args", "reasons"),
    [({"enable_thinking": True}, True), ({}, True), ({"enable_thinking": False}, False)],
    ids=["opened by the prompt", "opened by the model", "told not to"],
)
def test_reasoning_is_free_and_the_answer_after_it_is_bound(
    folders: Folders, way: dict[str, Any], template_args: dict[str, Any], reasons: bool
) -> None:
    with phyla.load(str(folders["qwen35"]), proposer="llguidance", **way) as model:
        opens, closes = (model.tokenizer.encode(marker)[0] for marker in ("<think>", "</think>"))
        # A model that would open its reasoning at once, and end it after a while.
        asked = {**SAMPLED, "max_tokens": 400, "logit_bias": {str(opens): 50.0, str(closes): 60.0}, "min_tokens": 0}
        answer = model.chat([{"role": "user", "content": "Hello"}], template_args=template_args, **asked)
    thoughts = closes in answer.token_ids
    said = answer.token_ids[answer.token_ids.index(closes) + 1 :] if thoughts else answer.token_ids
    assert thoughts is reasons
    assert (answer.token_ids[0] == opens) is (reasons and not template_args)
    assert is_kept(model.tokenizer.decode(said))
    assert (num_forced(answer) > 0) == (way is JUMPING)


@pytest.mark.parametrize(
    ("target", "options"),
    [
        pytest.param(
            "llama of letters",
            {"method": "ngram"},
            marks=[cell("grammar", "n-gram drafts"), cell("forced spans", "n-gram drafts")],
        ),
        pytest.param(
            "llama of letters",
            {"method": "two-model", "draft_model": "llama of letters"},
            marks=[cell("grammar", "two-model drafts"), cell("forced spans", "two-model drafts")],
        ),
        pytest.param(
            "qwen35 of letters",
            {"method": "mtp", "draft_model": "head"},
            marks=[cell("grammar", "MTP drafts"), cell("forced spans", "MTP drafts")],
        ),
    ],
)
def test_drafts_give_the_answer_of_plain_decoding(
    folders: Folders, way: dict[str, Any], target: str, options: dict[str, Any]
) -> None:
    named = {**options, **({"draft_model": str(folders[options["draft_model"]])} if "draft_model" in options else {})}
    folder = str(folders[target])
    with phyla.load(folder, proposer="llguidance", batch=1, prompt_cache=0) as plain:
        prompt = [*PROMPT, *plain.tokenizer.encode('{"tag":"abcdabcdbacd"}')]
        want = plain.generate(prompt, **TAGGED)
    with phyla.load(folder, proposer="llguidance", draft_adaptive="off", **named, **way) as drafting:
        answer = drafting.generate(prompt, **TAGGED)
    report = answer.usage.speculation
    assert report is not None
    assert report["accepted"] > num_forced(answer)
    assert (num_forced(answer) > 0) == (way is JUMPING)
    assert answer.token_ids == want.token_ids


@pytest.mark.parametrize(
    "scheme",
    [
        pytest.param("affine:8", marks=[cell("grammar", "affine"), cell("forced spans", "affine")]),
        pytest.param("turboquant", marks=[cell("grammar", "turboquant"), cell("forced spans", "turboquant")]),
    ],
)
def test_quantised_keys_and_values_keep_the_schema(folders: Folders, way: dict[str, Any], scheme: str) -> None:
    with phyla.load(str(folders["llama"]), proposer="llguidance", kv_scheme=scheme, **way) as loaded:
        answer = loaded.generate(PROMPT, **SAMPLED)
    assert is_kept(answer.text)
    assert (num_forced(answer) > 0) == (way is JUMPING)


LONG_KEYS = {
    "type": "object",
    "properties": {
        "shipment_tracking_reference": {"type": "boolean"},
        "estimated_delivery_window": {"type": "integer", "minimum": 0, "maximum": 9},
        "requires_signature_on_delivery": {"type": "boolean"},
    },
    "required": ["shipment_tracking_reference", "estimated_delivery_window", "requires_signature_on_delivery"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("engine", ["llguidance", "xgrammar"])
def test_long_keys_cost_less_than_two_thirds_of_the_steps(folders: Folders, engine: str) -> None:
    asked = {**SAMPLED, "constraint": ConstraintSpec("json_schema", json.dumps(LONG_KEYS), compact=True)}
    with phyla.load(str(folders["llama"]), proposer=engine, **JUMPING) as model:
        answer = model.generate(PROMPT, **asked)
    assert answer.usage.speculation is not None
    assert answer.usage.speculation["tokensPerForward"] >= 1.5
