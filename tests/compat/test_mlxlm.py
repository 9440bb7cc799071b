"""Models that mlx-lm's own classes run, with everything a request may ask for."""

from __future__ import annotations

import pytest
from phyla.testing.tiny import tiny_checkpoint
from phyla_mlxlm import MlxLmFamily
from phyla_mlxlm.installed import InstalledMlxLm

from tests.compat.family_rows import GREEDY, SAMPLED, FamilyRows
from tests.compat.matrix import cell
from tests.families.mlxlm.bridged_models import bridged_config, bridged_shapes


@pytest.fixture(scope="module", params=["llama", "gemma2", "mamba2", "qwen3_moe"])
def rows(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> FamilyRows:
    config = bridged_config(request.param)
    folder = tmp_path_factory.mktemp("models") / request.param
    family = MlxLmFamily(InstalledMlxLm.find())
    return FamilyRows(family, tiny_checkpoint(folder, config, shapes=bridged_shapes(config)))


@cell("mlxlm", "batch")
def test_rows_together_get_what_each_gets_alone(rows: FamilyRows) -> None:
    rows.together_equals_alone(GREEDY)


@cell("mlxlm", "seed")
def test_a_seed_draws_the_same_tokens_in_company(rows: FamilyRows) -> None:
    rows.together_equals_alone(SAMPLED)


@cell("mlxlm", "prefix")
def test_the_next_turn_reads_only_what_is_new(rows: FamilyRows) -> None:
    rows.the_next_turn_reads_only_what_is_new()


@cell("mlxlm", "logprobs")
def test_logprobs_of_a_cached_prompt_are_the_same(rows: FamilyRows) -> None:
    rows.logprobs_of_a_cached_prompt_are_the_same()


@cell("mlxlm", "cancel")
def test_a_cancelled_row_leaves_the_others_as_they_were(rows: FamilyRows) -> None:
    rows.a_cancelled_row_leaves_the_others_as_they_were()
