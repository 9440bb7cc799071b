"""n-gram lookup by its flag, through discovery, selection and the engine."""

from collections.abc import Iterator
from pathlib import Path

import phyla
import pytest
from phyla.errors import SettingsError, UsageError
from phyla.testing.tiny import tiny_checkpoint
from phyla.testing.tiny.configs import tiny_config

from tests.few_words import WORDS, of_few_words

PROMPTS = ["abc abc abc abc", "one two one two one"]
SEEDED = {"temperature": 0.9, "seed": 7, "top_k": len(WORDS)}
SAMPLINGS = [{}, SEEDED, {"frequency_penalty": 0.5}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return of_few_words(tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny-llama", tiny_config("llama")))


@pytest.fixture(scope="module")
def plain(folder: Path) -> Iterator[phyla.Model]:
    with phyla.load(str(folder)) as model:
        yield model


@pytest.mark.parametrize("options", [{"batch": 1}, {"batch": 4}, {"num_draft_tokens": 5}])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_tokens_are_those_of_plain_decoding(folder, plain, options, sampling):
    with phyla.load(str(folder), method="ngram", draft_adaptive="off", **options) as drafting:
        for prompt in PROMPTS:
            want = plain.generate(prompt, max_tokens=40, **sampling)
            got = drafting.generate(prompt, max_tokens=40, **sampling)
            assert got.token_ids == want.token_ids
            assert got.usage.speculation["method"] == "ngram"
            assert got.usage.speculation["accepted"] > 0


@pytest.mark.parametrize("num_drafts", [1, 2, 3, 7])
def test_a_long_answer_is_the_same_however_many_are_drafted(folder, plain, num_drafts):
    with phyla.load(str(folder), method="ngram", draft_adaptive="off", num_draft_tokens=num_drafts) as drafting:
        for sampling in SAMPLINGS:
            wanted = {"max_tokens": 128, "ignore_eos": True, **sampling}
            got = drafting.generate(PROMPTS[0], **wanted)
            assert got.token_ids == plain.generate(PROMPTS[0], **wanted).token_ids
            assert len(got.token_ids) == 128
            assert got.usage.speculation["accepted"] > 0


def test_ten_tokens_are_proposed_at_once_where_no_number_is_given(folder):
    wanted = {"max_tokens": 1 + 2 * 11, "ignore_eos": True, "logit_bias": {WORDS[0]: 100.0}}
    with phyla.load(str(folder), method="ngram", draft_adaptive="off") as model:
        report = model.generate([WORDS[0]] * 30, **wanted).usage.speculation
    assert (report["drafted"], report["accepted"], report["acceptanceLengths"][10]) == (20, 20, 2)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_rounds_that_are_started_ahead_bring_the_same_tokens(folder, plain, sampling):
    options = {"route": "fast", "compiled_decode": "on", "draft_adaptive": "off", "num_draft_tokens": 3}
    with phyla.load(str(folder), method="ngram", windows_ahead="on", **options) as drafting:
        for prompt in PROMPTS:
            want = plain.generate(prompt, max_tokens=40, **sampling)
            got = drafting.generate(prompt, max_tokens=40, **sampling)
            assert got.token_ids == want.token_ids
            assert got.usage.speculation["accepted"] > 0
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


@pytest.mark.parametrize(("options", "is_exact"), [({}, True), ({"spec_acceptance": "rejection"}, False)])
def test_rejection_is_an_explicit_choice_that_gives_up_the_tokens_of_a_seed(folder, plain, options, is_exact):
    wanted = {"max_tokens": 40, "ignore_eos": True, **SEEDED}
    with phyla.load(str(folder), method="ngram", draft_adaptive="off", **options) as drafting:
        got = drafting.generate(PROMPTS[0], **wanted)
    assert len(got.token_ids) == 40
    assert got.usage.speculation["accepted"] > 0
    assert (got.token_ids == plain.generate(PROMPTS[0], **wanted).token_ids) is is_exact
