"""Entry points: sorted, checked, and not imported when switched off."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from phyla.errors import DuplicatePlugin, PluginApiError, PluginImportError, UnknownName
from phyla.plugins import discover

MakePlugin = Callable[[str, str], EntryPoint]
GOOD = "phyla_api = 1\n"


@pytest.fixture
def make_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakePlugin:
    """Writes a package and gives its entry point."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(name: str, text: str) -> EntryPoint:
        module = f"found_{name}"
        (tmp_path / f"{module}.py").write_text(text)
        monkeypatch.delitem(sys.modules, module, raising=False)
        return EntryPoint(name, module, "phyla")

    return make


def states(*entry_points: EntryPoint, disabled: tuple[str, ...] = (), no_plugins: bool = False) -> dict[str, str]:
    manager = discover(disabled, no_plugins, entry_points=entry_points)
    return {info.name: info.state for info in manager.plugins()}


def test_core_declares_itself_like_a_plugin() -> None:
    assert states() == {"phyla": "loaded"}


def test_what_is_installed_is_loaded(make_plugin: MakePlugin) -> None:
    assert states(make_plugin("oak", GOOD), make_plugin("birch", GOOD)) == {
        "phyla": "loaded",
        "birch": "loaded",
        "oak": "loaded",
    }


def test_a_disabled_plugin_is_not_even_imported(make_plugin: MakePlugin) -> None:
    entry_point = make_plugin("bomb", "raise RuntimeError('imported')\n")
    assert states(entry_point, disabled=("bomb",))["bomb"] == "disabled"
    assert "found_bomb" not in sys.modules


def test_no_plugins_imports_none(make_plugin: MakePlugin) -> None:
    entry_point = make_plugin("bomb", "raise RuntimeError('imported')\n")
    assert states(entry_point, no_plugins=True) == {"phyla": "loaded", "bomb": "disabled"}


def test_disabling_what_is_not_there_names_the_near_match(make_plugin: MakePlugin) -> None:
    with pytest.raises(UnknownName, match=r"no plugin 'oka'\. Did you mean 'oak'"):
        states(make_plugin("oak", GOOD), disabled=("oka",))


@pytest.mark.parametrize(
    "statement", ["raise ValueError('on purpose')", "import nothing_like_it", "raise SystemExit(3)"]
)
def test_a_plugin_that_raises_at_import_is_named_with_the_remedy(make_plugin: MakePlugin, statement: str) -> None:
    with pytest.raises(PluginImportError, match="Plugin 'bad': importing found_bad.*--disable bad"):
        states(make_plugin("bad", f"{statement}\n"))


def test_a_broken_plugin_can_be_listed_beside_the_others(make_plugin: MakePlugin) -> None:
    points = [make_plugin("bad", "raise ValueError('on purpose')\n"), make_plugin("oak", GOOD)]
    infos = {info.name: info for info in discover(entry_points=points, keep_going=True).plugins()}
    assert infos["bad"].state == "failed"
    assert "on purpose" in infos["bad"].reason
    assert infos["oak"].state == "loaded"


def test_a_plugin_without_a_hook_api_version_is_refused(make_plugin: MakePlugin) -> None:
    with pytest.raises(PluginApiError, match="Plugin 'mute': found_mute doesn't say which hook API"):
        states(make_plugin("mute", ""))


def test_two_distributions_with_one_name_are_an_error(make_plugin: MakePlugin) -> None:
    with pytest.raises(DuplicatePlugin, match="'oak'.*found_oak.*other_oak"):
        states(make_plugin("oak", GOOD), EntryPoint("oak", "other_oak", "phyla"))
