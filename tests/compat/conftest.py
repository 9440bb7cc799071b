"""Holds the test of each cell to what `expected.toml` says of it."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from phyla.errors import PhylaError

from tests.compat.matrix import expected_cells


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    marks = [mark.args for mark in item.iter_markers("cell")]
    refusals = {expected_cells()[feature, other].refusal for feature, other in marks} or {None}
    assert len(refusals) == 1, "one test can't stand for cells that expect different things"
    (refusal,) = refusals
    try:
        yield
    except PhylaError as error:
        if refusal is None or refusal not in str(error):
            raise
        return
    assert refusal is None, f"nothing was refused, but {marks} should be: {refusal}"
