"""Qwen3.5, whose recurrent layers can't be cut back, with everything a request may ask for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import phyla
import pytest
from phyla.engine.engine import EngineSpec
from phyla.request import ConstraintSpec, SamplingParams
from phyla.testing.engines import a_request, family_spec, running
from phyla.testing.reuse import reusing
from phyla.testing.row_equality import alone, staggered
from phyla.testing.tiny import tiny_checkpoint
from phyla.testing.tiny.qwen35 import qwen35_config
from phyla_qwen35 import Qwen35Family

from tests.compat.matrix import cell
from tests.few_words import of_few_words

NUM_TOKENS = 10
PROMPT = tuple(10 + index * 7 % 400 for index in range(60))
OTHER = tuple(11 + index * 5 % 400 for index in range(23))
GREEDY = SamplingParams(ignore_eos=True, num_logprobs=2)
SAMPLED = SamplingParams(temperature=1.0, seed=11, ignore_eos=True, num_logprobs=2)
CONFIG = qwen35_config(with_experts=True, num_hidden_layers=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny-qwen35", CONFIG)


@pytest.fixture(scope="module")
def of_words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return of_few_words(tiny_checkpoint(tmp_path_factory.mktemp("models") / "of-words", CONFIG))


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A smaller model of the same series, recurrent layers included."""
    config = qwen35_config(num_hidden_layers=2, full_attention_interval=2)
    return of_few_words(tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny-drafter", config, seed=1))


def spec(folder: Path, settings: Mapping[str, Any]) -> EngineSpec:
    return family_spec(Qwen35Family(), folder, {"prefill_chunk": 16, **settings})


@pytest.mark.parametrize(
    "sampling",
    [
        pytest.param(GREEDY, marks=cell("qwen35", "batch")),
        pytest.param(SAMPLED, marks=cell("qwen35", "seed")),
    ],
)
def test_rows_together_get_what_each_gets_alone(folder: Path, sampling: SamplingParams) -> None:
    wanted = [a_request(name, ids, NUM_TOKENS, sampling) for name, ids in (("one", PROMPT), ("other", OTHER))]
    got = staggered(spec(folder, {"batch": 4}), wanted, every=1)
    want = alone(spec(folder, {"batch": 1}), wanted)
    assert any(one.finished.usage.lane == "batched" for one in got.values())
    assert {name: one.ids for name, one in got.items()} == {name: one.ids for name, one in want.items()}


@cell("qwen35", "prefix")
def test_the_next_turn_reads_only_what_is_new(folder: Path) -> None:
    with reusing(spec(folder, {})) as (engine, log, seen):
        engine.submit(a_request("first", PROMPT, NUM_TOKENS, GREEDY))
        prompt = (*PROMPT, *log.wait("first").ids, 9, 8, 7)
        seen.steps.clear()
        turn = a_request("turn", prompt, NUM_TOKENS, GREEDY)
        engine.submit(turn)
        heard = log.wait("turn")
    assert heard.finished.usage.num_cached_tokens == len(prompt) - 4
    assert seen.num_tokens == 4 + NUM_TOKENS - 1
    assert heard.ids == alone(spec(folder, {}), [turn])["turn"].ids


@cell("qwen35", "logprobs")
def test_logprobs_from_a_retained_state_are_the_same(folder: Path) -> None:
    with reusing(spec(folder, {})) as (engine, log, _):
        engine.submit(a_request("cold", PROMPT, NUM_TOKENS, GREEDY))
        cold = log.wait("cold")
        engine.submit(a_request("warm", PROMPT, NUM_TOKENS, GREEDY))
        warm = log.wait("warm")
    assert warm.finished.usage.num_cached_tokens == len(PROMPT) - 1
    assert all(token.logprobs is not None for token in warm.tokens)
    assert [token.logprobs for token in warm.tokens] == [token.logprobs for token in cold.tokens]


@cell("qwen35", "cancel")
def test_a_cancelled_row_leaves_the_others_as_they_were(folder: Path) -> None:
    kept = a_request("kept", OTHER, NUM_TOKENS, GREEDY)
    endless = replace(a_request("endless", PROMPT, NUM_TOKENS, GREEDY), max_tokens=400)
    with running(spec(folder, {"batch": 4})) as (engine, log):
        engine.submit(endless)
        log.wait_for_tokens("endless", 2)
        engine.submit(kept)
        log.wait_for_tokens("kept", 2)
        engine.cancel("endless")
        heard, cut = log.wait("kept"), log.wait("endless")
    assert cut.finished.reason == "cancelled"
    assert heard.ids == alone(spec(folder, {}), [kept])["kept"].ids


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"method": "ngram"}, marks=cell("qwen35", "n-gram drafts")),
        pytest.param({"method": "twomodel"}, marks=cell("qwen35", "two-model drafts")),
    ],
)
def test_drafts_that_are_taken_back_change_no_token(of_words: Path, drafter: Path, options: Mapping[str, str]) -> None:
    wanted: dict[str, Any] = {"max_tokens": 30, "temperature": 0, "ignore_eos": True}
    more = {"draft_model": str(drafter)} if options["method"] == "twomodel" else {}
    with phyla.load(str(of_words)) as plain:
        want = plain.generate("abc abc abc", **wanted)
    with phyla.load(str(of_words), draft_adaptive="off", **options, **more) as drafting:
        got = drafting.generate("abc abc abc", **wanted)
    assert got.token_ids == want.token_ids
    assert got.usage.speculation["drafted"] > got.usage.speculation["accepted"] > 0


@cell("qwen35", "a grammar")
def test_an_answer_follows_its_schema(folder: Path) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    asked = ConstraintSpec("json_schema", json.dumps(schema), compact=True)
    with phyla.load(str(folder)) as model:
        answer = model.generate("abc", max_tokens=60, temperature=0, constraint=asked)
    assert json.loads(answer.text)["n"] in (1, 2)
