"""Qwen3.5 through the engine: rows together, windows that are taken back, prefixes that are gone on from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import phyla
import pytest
from phyla.cli.main import main
from phyla.testing.engines import family_spec
from phyla.testing.row_equality import RowEqualityContract
from phyla.testing.tiny import tiny_checkpoint
from phyla.testing.tiny.qwen35 import qwen35_config
from phyla_qwen35 import Qwen35Family

DENSE = qwen35_config(num_hidden_layers=4)
EXPERTS = qwen35_config(with_experts=True, num_hidden_layers=4)
REPETITIVE = "abc abc abc abc"
QUESTION = [{"role": "user", "content": "Which of the two is the larger one, and why do you think so?"}]


class Rows(RowEqualityContract):
    config: ClassVar[dict]
    group = "stacked"

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def folder(cls, tmp_path_factory):
        cls.made = tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny", cls.config)

    def spec(self, settings):
        return family_spec(Qwen35Family(), self.made, settings)


class TestDenseRows(Rows):
    config = DENSE


class TestRowsWithExperts(Rows):
    config = EXPERTS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny-qwen35", DENSE)


@pytest.fixture(scope="module")
def plain(folder: Path) -> Iterator[phyla.Model]:
    with phyla.load(str(folder), prompt_cache="0") as model:
        yield model


@pytest.mark.parametrize("options", [{"batch": 1}, {"draft_adaptive": "off", "num_draft_tokens": 5}])
@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.9, "seed": 7}])
def test_drafts_that_are_taken_back_leave_the_state_as_it_was(folder, plain, options, sampling):
    want = plain.generate(REPETITIVE, max_tokens=40, ignore_eos=True, **sampling)
    with phyla.load(str(folder), method="ngram", **options) as drafting:
        got = drafting.generate(REPETITIVE, max_tokens=40, ignore_eos=True, **sampling)
    assert got.token_ids == want.token_ids
    assert got.usage.speculation["drafted"] > got.usage.speculation["accepted"]


def test_another_answer_to_the_same_question_is_gone_on_from_at_a_retained_boundary(folder, plain):
    """A recurrent state can't be cut back to where two prompts part: it has to have been kept there."""
    with phyla.load(str(folder)) as model:
        model.chat(QUESTION, max_tokens=12, temperature=0)
        conversation = [*QUESTION, {"role": "assistant", "content": "The green one."}, *QUESTION]
        second = model.chat(conversation, max_tokens=12, temperature=0)
        retained = model.renderer.render_chat(QUESTION).stable_boundary
    assert second.usage.num_cached_tokens >= retained > 30
    assert second.token_ids == plain.chat(conversation, max_tokens=12, temperature=0).token_ids


def test_explain_lays_out_what_each_layer_keeps(folder, capsys):
    main(["explain", str(folder)])
    said = capsys.readouterr().out
    assert "qwen35 (auto: its claim is exact)" in " ".join(said.split())
    assert "recurrent  conv 1x3x384, state 4x32x64" in said
    assert "Cache: 1024 bytes per token and 112.13 kB of state that doesn't grow" in said
