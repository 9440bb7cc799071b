"""Every setting is documented, and no two plugins in the box want the same flag, variable or section."""

from __future__ import annotations

import importlib

from phyla import builtin
from phyla.plugins import PluginManager
from phyla.settings import load_settings
from phyla.settings.page import settings_page

from tests.architecture.sources import REPOSITORY, pyproject


def everything_in_the_box() -> PluginManager:
    """Every plugin of this repository, from the tree instead of from what happens to be installed."""
    manager = PluginManager()
    manager.register("phyla", builtin)
    for name, package in pyproject()["project"]["entry-points"].get("phyla", {}).items():
        manager.register(name, importlib.import_module(package))
    return manager


def test_all_sections_fill_together() -> None:
    sections = everything_in_the_box().settings_sections()
    assert len(load_settings(sections, env={}, partial=True).sections()) == len(sections)


def test_every_setting_has_a_docstring() -> None:
    from phyla.settings import declared_fields

    sections = everything_in_the_box().settings_sections()
    assert [f"{one.where}" for section in sections for one in declared_fields(section) if not one.description] == []


def test_the_settings_page_is_up_to_date() -> None:
    page = REPOSITORY / "docs" / "settings.md"
    expected = settings_page(everything_in_the_box().settings_sections())
    assert page.read_text("utf-8") == expected, "run: python -m tests.architecture.write_settings_page"
