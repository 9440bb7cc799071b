"""The matrix, its tests and its page say the same."""

from __future__ import annotations

from tests.compat.matrix import PAGE, REFUSED, WORKS, expected_cells, marked_cells, page


def test_every_cell_has_a_test_and_every_test_a_cell() -> None:
    assert marked_cells() == set(expected_cells())


def test_a_cell_works_or_is_refused_for_a_reason() -> None:
    unclear = [one for one in expected_cells().values() if one.expected != WORKS and not one.refusal]
    assert unclear == []


def test_no_pair_is_listed_twice() -> None:
    mirrored = [pair for pair in expected_cells() if pair[::-1] in expected_cells()]
    assert mirrored == []


def test_a_refusal_is_spelled_as_the_tests_look_for_it() -> None:
    assert all(one.expected == WORKS or one.expected.startswith(REFUSED) for one in expected_cells().values())


def test_the_page_is_made_from_the_matrix() -> None:
    assert PAGE.read_text("utf-8") == page()
