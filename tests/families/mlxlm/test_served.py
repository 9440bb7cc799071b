"""Bridged models from the outside: chosen last, explained, drafted for, and gone on from."""

from __future__ import annotations

from typing import ClassVar

import phyla
import pytest
from phyla.cli.main import main
from phyla.errors import UnsupportedScheme
from phyla.testing.engines import family_spec
from phyla.testing.row_equality import RowEqualityContract
from phyla.testing.tiny import tiny_checkpoint
from phyla_mlxlm import MlxLmFamily
from phyla_mlxlm.installed import InstalledMlxLm

from tests.families.mlxlm.bridged_models import bridged_config, bridged_shapes

WANTED = {"max_tokens": 30, "temperature": 0, "ignore_eos": True}


def made(folder, model_type):
    config = bridged_config(model_type)
    return tiny_checkpoint(folder / model_type, config, shapes=bridged_shapes(config))


class Rows(RowEqualityContract):
    model_type: ClassVar[str]

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def folder(cls, tmp_path_factory):
        cls.made = made(tmp_path_factory.mktemp("models"), cls.model_type)

    def spec(self, settings):
        return family_spec(MlxLmFamily(InstalledMlxLm.find()), self.made, settings)


class TestRowsWithRings(Rows):
    model_type = "gemma3_text"


class TestRecurrentRows(Rows):
    model_type = "mamba2"


def test_a_model_that_phyla_knows_itself_stays_with_who_knows_it(tmp_path):
    folder = str(made(tmp_path, "llama"))
    with phyla.load(folder) as own, phyla.load(folder, family="mlxlm") as bridged:
        assert own.plan.family.name == "universal"
        assert bridged.plan.family.name == "mlxlm"
        assert own.generate("Hello there", **WANTED).token_ids == bridged.generate("Hello there", **WANTED).token_ids


@pytest.mark.parametrize("model_type", ["gemma3_text", "mamba2"])
def test_drafts_that_are_taken_back_change_no_token(tmp_path, model_type):
    folder = str(made(tmp_path, model_type))
    with phyla.load(folder) as plain, phyla.load(folder, method="ngram", draft_adaptive="off") as drafting:
        want, got = plain.generate("abc abc abc", **WANTED), drafting.generate("abc abc abc", **WANTED)
    assert got.token_ids == want.token_ids
    assert got.usage.speculation["drafted"] > got.usage.speculation["accepted"]


def test_explain_says_what_works_and_what_does_not(tmp_path, capsys):
    assert main(["explain", str(made(tmp_path, "mamba2"))]) == 0
    said = capsys.readouterr().out
    assert "mamba2" in said
    assert "works: rows in one batch" in said
    assert "doesn't: cancelling inside a chunk" in said


def test_a_scheme_that_has_nothing_to_store_is_refused(tmp_path):
    with pytest.raises(UnsupportedScheme, match="covers no layer"):
        phyla.load(str(made(tmp_path, "llama")), family="mlxlm", kv_scheme="affine:8")
