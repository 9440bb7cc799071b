"""The library over a tiny checkpoint on disk, through discovery, selection and the engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import phyla
import pytest
from phyla import NamedSampler, hookimpl
from phyla.cli.generate import GenerateOptions, run_generate
from phyla.errors import RequestError, UnknownName, UsageError
from phyla.library import load_with
from phyla.plugins import discover
from phyla.request import Request
from phyla.sampling.declaration import LogitsProcessor
from phyla.settings import load_settings
from phyla.testing.tiny import tiny_checkpoint
from phyla.testing.tiny.configs import tiny_config


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny-llama", tiny_config("llama"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[phyla.Model]:
    with phyla.load(str(folder), batch=4) as loaded:
        yield loaded


def test_text_and_its_ids_are_continued_alike(model: phyla.Model) -> None:
    ids = model.tokenizer.encode("hello there", add_special=True)
    assert model.generate("hello there", max_tokens=8).token_ids == model.generate(ids, max_tokens=8).token_ids


def test_a_conversation_goes_through_the_template(model: phyla.Model) -> None:
    answer = model.chat([{"role": "user", "content": "hi"}], max_tokens=4)
    rendered = model.renderer.render_chat([{"role": "user", "content": "hi"}])
    assert answer.token_ids == model.generate(rendered, max_tokens=4).token_ids
    assert answer.usage.num_prompt_tokens == len(rendered.ids)


def test_a_stream_says_what_the_whole_says(model: phyla.Model) -> None:
    pieces = list(model.stream("abc", max_tokens=6))
    whole = model.generate("abc", max_tokens=6)
    assert "".join(piece.text for piece in pieces if not piece.special) == whole.text
    assert pieces[-1].finish_reason == whole.finish_reason == "length"


def test_leaving_a_stream_early_cancels_its_request(model: phyla.Model) -> None:
    stream = model.stream("abc", max_tokens=1000)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert model.generate("abc", max_tokens=2).usage.num_completion_tokens == 2


def test_logprobs_come_one_per_token(model: phyla.Model) -> None:
    answer = model.generate("abc", max_tokens=3, top_logprobs=2)
    assert answer.logprobs is not None
    assert [len(one.top) for one in answer.logprobs] == [2, 2, 2]


def test_the_stats_name_the_strategies_of_the_fast_route(model: phyla.Model) -> None:
    stats = model.engine.stats()["fast_route"]
    assert stats["digest"] == model.plan.strategies.digest() == model.plan.identity.strategy_digest
    assert (stats["rows"], stats["weights"], stats["qmm"]) == (4, "stored", "dense")
    assert {stats["attention"], stats["append"], stats["decode"]} <= {
        "grouped",
        "fused_mask",
        "loop",
        "scatter",
        "slices",
        "eager",
        "compiled",
    }


def test_samples_come_together(model: phyla.Model) -> None:
    answer = model.generate("abc", max_tokens=6, num_samples=3, temperature=2.0, seed=1)
    assert len(answer.samples) == 3
    assert answer.samples[0].token_ids == answer.token_ids
    assert len({one.token_ids for one in answer.samples}) > 1


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_tokns": 3}, UsageError, "max_tokns"),
        ({"max_tokens": 0}, RequestError, "max_tokens"),
        ({"max_tokens": "5"}, RequestError, "max_tokens must be of type int"),
        ({"max_tokens": 1.5}, RequestError, "max_tokens must be of type int"),
        ({"max_tokens": True}, RequestError, "max_tokens must be of type int"),
        ({"temperature": -1.0}, RequestError, "temperature"),
        ({"logits_processors": ["nobody"]}, RequestError, "nobody"),
        ({"num_samples": 0}, RequestError, "samples"),
        ({"num_samples": 2.0}, RequestError, "num_samples must be of type int"),
    ],
)
def test_bad_options_are_refused(
    model: phyla.Model, options: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        model.generate("abc", **options)


def test_a_plugins_processor_is_applied_where_it_is_named(folder: Path) -> None:
    forced = 42

    def create(request: Request) -> LogitsProcessor:
        return lambda history, logits: mx.where(mx.arange(logits.shape[-1]) == forced, logits, -mx.inf)

    @hookimpl
    def phyla_samplers() -> list[NamedSampler]:
        return [NamedSampler("stubborn", "processor", create)]

    manager = discover()
    manager.register("mule", SimpleNamespace(phyla_api=1, phyla_samplers=phyla_samplers))
    with load_with(str(folder), manager, load_settings(manager.settings_sections())) as model:
        named = model.generate("abc", max_tokens=4, logits_processors=["stubborn"])
        plain = model.generate("abc", max_tokens=4)
    assert named.token_ids == (forced,) * 4
    assert plain.token_ids != named.token_ids


def test_a_conversation_given_as_a_prompt_names_what_takes_it(model: phyla.Model) -> None:
    with pytest.raises(RequestError, match="chat"):
        model.generate([{"role": "user", "content": "hi"}])  # type: ignore[list-item]


def test_xtc_never_removes_the_end_of_sequence(model: phyla.Model) -> None:
    likely_end = {model.facts.eos_ids[0]: 50.0}
    answer = model.generate("abc", max_tokens=4, temperature=1.0, xtc_probability=1.0, logit_bias=likely_end)
    assert answer.finish_reason == "stop"


def test_a_prompt_past_the_context_is_refused(model: phyla.Model) -> None:
    with pytest.raises(phyla.PhylaError, match="context limit"):
        model.generate([1] * (model.facts.context_limit + 1))


def test_an_unknown_setting_names_the_near_match(folder: Path) -> None:
    with pytest.raises(UnknownName, match="--batch"):
        phyla.load(str(folder), bach=2)


def test_a_closed_model_says_so(folder: Path) -> None:
    with phyla.load(str(folder)) as loaded:
        pass
    with pytest.raises(phyla.PhylaError, match="shutting down"):
        loaded.generate("abc")


def test_the_command_writes_what_the_library_answers(folder: Path, model: phyla.Model) -> None:
    manager = discover()
    settings = load_settings(
        manager.settings_sections(), flags={"--max-tokens": 5, "--method": "none", "--num-draft-tokens": 2}
    )
    settings = settings.with_notices(["said already"])
    written: list[str] = []
    noted: list[str] = []
    options = GenerateOptions("abc", raw=True)
    usage = run_generate(str(folder), options, manager, settings, written.append, noted.append)
    assert "".join(written) == model.generate("abc", max_tokens=5).text
    assert [notice for notice in noted if "--num-draft-tokens" in notice]
    assert "said already" not in noted
    assert usage.num_completion_tokens == 5


@pytest.mark.parametrize(
    "options",
    [{"batch": 1}, {"batch": 4, "route": "exact"}, {"batch": 4, "route": "fast"}, {"batch": 1, "method": "ngram"}],
    ids=["strict", "exact", "fast", "drafting"],
)
def test_every_route_goes_on_from_what_it_computed(folder: Path, options: dict[str, Any]) -> None:
    with phyla.load(str(folder), **options) as model:
        first = model.generate("the quick fox is sunny and warm", max_tokens=4)
        again = model.generate("the quick fox is sunny and warm", max_tokens=4)
    assert again.usage.num_cached_tokens == again.usage.num_prompt_tokens - 1
    assert again.token_ids == first.token_ids
