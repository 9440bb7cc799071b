"""The walkthrough in the docs is the code that the tests install and run."""

from __future__ import annotations

from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "phyla-abacus" / "phyla_abacus"
PAGE = Path(__file__).parents[2] / "docs" / "writing-plugins.md"


@pytest.mark.parametrize("name", ["__init__.py", "model.py"])
def test_the_page_shows_the_file_that_is_installed(name: str) -> None:
    code = (SOURCE / name).read_text("utf-8").strip()
    assert f"```python\n{code}\n```" in PAGE.read_text("utf-8")
