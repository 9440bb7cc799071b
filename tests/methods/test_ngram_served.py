"""n-gram lookup by its flag, through discovery, selection and the engine."""

from collections.abc import Iterator
from pathlib import Path

import phyla
import pytest
from phyla.errors import SettingsError, UsageError
from phyla.testing.tiny import tiny_checkpoint
from phyla.testing.tiny.configs import tiny_config

PROMPTS = ["abc abc abc abc", "one two one two one"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny-llama", tiny_config("llama"))


@pytest.fixture(scope="module")
def plain(folder: Path) -> Iterator[phyla.Model]:
    with phyla.load(str(folder)) as model:
        yield model


@pytest.mark.parametrize("options", [{"batch": 1}, {"batch": 4}, {"draft_adaptive": "off", "num_draft_tokens": 5}])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "seed": 7, "top_p": 0.9}, {"frequency_penalty": 0.5}])
def test_tokens_are_those_of_plain_decoding(folder, plain, options, sampling):
    with phyla.load(str(folder), method="ngram", **options) as drafting:
        for prompt in PROMPTS:
            want = plain.generate(prompt, max_tokens=40, **sampling)
            got = drafting.generate(prompt, max_tokens=40, **sampling)
            assert got.token_ids == want.token_ids
            assert got.usage.speculation["method"] == "ngram"


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "seed": 7, "top_p": 0.9}, {"frequency_penalty": 0.5}])
def test_rounds_that_are_started_ahead_bring_the_same_tokens(folder, plain, sampling):
    options = {"route": "fast", "compiled_decode": "on", "draft_adaptive": "off", "num_draft_tokens": 3}
    with phyla.load(str(folder), method="ngram", windows_ahead="on", **options) as drafting:
        for prompt in PROMPTS:
            want = plain.generate(prompt, max_tokens=40, **sampling)
            assert drafting.generate(prompt, max_tokens=40, **sampling).token_ids == want.token_ids
        ahead = drafting.engine.stats()["fast_route"]["ahead"]
    assert ahead["started"] > 0


def test_the_plan_says_who_chose_it(folder):
    with phyla.load(str(folder), method="ngram") as model:
        assert (model.plan.method.name, model.plan.method.chosen_by) == ("ngram", "flag")


def test_nobody_gets_it_without_asking(plain):
    assert plain.plan.method.name == "none"
    assert plain.generate("abc", max_tokens=2).usage.speculation is None


def test_a_drafter_beside_it_is_refused_before_anything_loads(folder):
    with pytest.raises(UsageError, match="works without a drafter"):
        phyla.load(str(folder), method="ngram", draft_model=str(folder))


def test_a_minimum_above_the_maximum_is_refused_with_both_flags(folder):
    with pytest.raises(SettingsError, match="--ngram-min 4 is above --ngram-max 2"):
        phyla.load(str(folder), method="ngram", ngram_min=4, ngram_max=2)


def test_rejection_is_an_explicit_choice(folder):
    with phyla.load(str(folder), method="ngram", spec_acceptance="rejection") as model:
        answer = model.generate(PROMPTS[0], max_tokens=30, temperature=0.7, seed=1)
        assert answer.usage.num_completion_tokens == 30
