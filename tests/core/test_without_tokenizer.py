"""A model folder without a tokenizer runs on token ids."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import phyla
import pytest
from phyla.errors import ConstraintError, RequestError, TokenizerError
from phyla.request import ConstraintSpec
from phyla.testing.tiny import tiny_checkpoint
from phyla.testing.tiny.configs import tiny_config

PROMPT = [5, 300, 41, 7]
REMEDY = r"has no tokenizer\.json\. Fetch the model again"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same model with a tokenizer and without."""
    models = tmp_path_factory.mktemp("models")
    config = tiny_config("llama")
    return tiny_checkpoint(models / "whole", config), tiny_checkpoint(models / "bare", config, tokenizer=False)


@pytest.fixture(scope="module")
def bare(folders: tuple[Path, Path]) -> Iterator[phyla.Model]:
    with phyla.load(str(folders[1])) as model:
        yield model


def test_token_ids_are_continued_as_with_one(folders: tuple[Path, Path], bare: phyla.Model) -> None:
    with phyla.load(str(folders[0])) as model:
        expected = model.generate(PROMPT, max_tokens=8, ignore_eos=True)
    answer = bare.generate(PROMPT, max_tokens=8, ignore_eos=True, logprobs=True)
    assert answer.token_ids == expected.token_ids
    assert answer.text == ""
    assert answer.logprobs is not None
    assert [piece.token_id for piece in bare.stream(PROMPT, max_tokens=2, ignore_eos=True)][:2] == list(
        expected.token_ids[:2]
    )


def test_text_and_conversations_are_refused_with_the_remedy(bare: phyla.Model) -> None:
    with pytest.raises(TokenizerError, match=REMEDY):
        bare.generate("Hello")
    with pytest.raises(TokenizerError, match=REMEDY):
        bare.chat([{"role": "user", "content": "Hello"}])


def test_what_is_about_text_is_refused_with_the_remedy(bare: phyla.Model) -> None:
    with pytest.raises(RequestError, match=f"Stop strings are looked for in text.*{REMEDY}"):
        bare.generate(PROMPT, stop="end")
    with pytest.raises(ConstraintError, match=REMEDY):
        bare.generate(PROMPT, constraint=ConstraintSpec("json_object", "{}"))


def test_ids_past_the_vocabulary_are_refused(bare: phyla.Model) -> None:
    with pytest.raises(RequestError, match="they run from 0 to 511"):
        bare.generate([512])
