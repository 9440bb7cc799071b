"""The universal decoder with everything a request may ask for."""

from __future__ import annotations

import pytest
from phyla.testing.tiny import tiny_checkpoint, tiny_config
from phyla_universal import UniversalFamily

from tests.compat.family_rows import GREEDY, SAMPLED, FamilyRows
from tests.compat.matrix import cell

KINDS = ["sliding_attention", "full_attention"]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> FamilyRows:
    config = tiny_config("llama", num_hidden_layers=2, layer_types=KINDS, sliding_window=32)
    return FamilyRows(UniversalFamily(), tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny", config))


@cell("universal", "batch")
def test_rows_together_get_what_each_gets_alone(rows: FamilyRows) -> None:
    rows.together_equals_alone(GREEDY)


@cell("universal", "seed")
def test_a_seed_draws_the_same_tokens_in_company(rows: FamilyRows) -> None:
    rows.together_equals_alone(SAMPLED)


@cell("universal", "prefix")
def test_the_next_turn_reads_only_what_is_new(rows: FamilyRows) -> None:
    rows.the_next_turn_reads_only_what_is_new()


@cell("universal", "logprobs")
def test_logprobs_of_a_cached_prompt_are_the_same(rows: FamilyRows) -> None:
    rows.logprobs_of_a_cached_prompt_are_the_same()


@cell("universal", "cancel")
def test_a_cancelled_row_leaves_the_others_as_they_were(rows: FamilyRows) -> None:
    rows.a_cancelled_row_leaves_the_others_as_they_were()
