"""Pages link to files that exist, and the tour names modules that exist."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for folder in ("", "docs", "docs/decisions", "docs/families", "docs/methods", "benchmarks", "changelog")
    for path in (ROOT / folder).glob("*.md")
)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", text)
    missing = [link for link in links if not ((ROOT / page).parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("page", ["docs/tour.md", "docs/architecture.md"])
def test_modules_that_a_page_names_exist(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    names = sorted(set(re.findall(r"`(phyla(?:_\w+)?(?:\.[a-z_]+)*)`", text)) - {"phyla.toml"})
    assert [name for name in names if not _exists(name)] == []


def _exists(name: str) -> bool:
    parent, _, last = name.rpartition(".")
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        found = None
    # `phyla.load` and such: a name inside a module.
    return found is not None or (bool(parent) and hasattr(importlib.import_module(parent), last))
