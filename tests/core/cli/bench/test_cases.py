"""Cases as users write them."""

from __future__ import annotations

import pytest
from phyla.cli.bench.cases import SUITES, Case, cases_of
from phyla.errors import UsageError


@pytest.mark.parametrize(
    ("text", "case"),
    [
        ("tg@1x512", Case("tg", (512,))),
        ("fast:tg@3x7", Case("tg", (7, 7, 7), "fast")),
        ("exact:pp@1x2048", Case("pp", (2048,), "exact")),
        ("auto:tg@1x1600+3x20", Case("tg", (1600, 20, 20, 20), "auto")),
    ],
)
def test_a_case_is_read_and_named_as_it_is_written(text: str, case: Case) -> None:
    assert Case.parse(text) == case
    assert Case.parse(text).name == text


@pytest.mark.parametrize(
    "text", ["", "tg", "tg@", "tg@8", "tg@8x", "tg@0x5", "tg@2x0", "xx@1x5", "slow:tg@1x5", "tg@1x5+"]
)
def test_anything_else_is_refused_with_what_a_case_looks_like(text: str) -> None:
    with pytest.raises(UsageError, match="isn't a case|has no rows.*fast:tg@8x512"):
        Case.parse(text)


def test_lengths_and_row_counts_make_cases_beside_the_named_ones() -> None:
    made = cases_of(["fast:tg@1x5", "pp@1x3"], prompts=[3, 9], stored=[20, 40], rows=[1, 2])
    names = ["fast:tg@1x5", "pp@1x3", "pp@1x9", "tg@1x20", "tg@2x20", "tg@1x40", "tg@2x40"]
    assert [case.name for case in made] == names


@pytest.mark.parametrize("suite", SUITES)
def test_every_case_of_a_suite_is_one(suite: str) -> None:
    assert [Case.parse(text).name for text in SUITES[suite]] == list(SUITES[suite])
