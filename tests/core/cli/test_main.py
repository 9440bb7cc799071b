"""The command line as a whole: commands, flags, errors and exit codes."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from phyla.cli.foreign import FOREIGN_FLAGS

from tests.core.cli.conftest import RunPhyla

MakePlugin = Callable[[str, str], EntryPoint]


def test_help_lists_core_and_plugin_commands(phyla: RunPhyla) -> None:
    ran = phyla("--help")
    assert ran.status == 0
    assert [name for name in ("doctor", "explain", "plugins", "serve") if name not in ran.out] == []


def test_a_bare_call_serves(phyla: RunPhyla) -> None:
    assert phyla().out == "serving None on 4 wheels\n"


def test_flags_alone_serve_too(phyla: RunPhyla) -> None:
    assert phyla("--wheels", "6").out == "serving None on 6 wheels\n"


def test_both_flag_grammars_are_read(phyla: RunPhyla) -> None:
    assert phyla("serve", "some-model", "--wheels=6").out == "serving some-model on 6 wheels\n"
    assert phyla("serve", "--wheels", "6", "some-model").out == "serving some-model on 6 wheels\n"


def test_the_version_is_printed(phyla: RunPhyla) -> None:
    ran = phyla("--version")
    assert ran.status == 0
    assert ran.out.startswith("phyla, version ")


def test_a_variable_and_a_file_set_what_no_flag_does(phyla: RunPhyla) -> None:
    assert phyla("serve", env={"PHYLA_TOY__WHEELS": "3"}).out == "serving None on 3 wheels\n"
    Path("phyla.toml").write_text("[toy]\nwheels = 2\n")
    assert phyla("serve").out == "serving None on 2 wheels\n"


def test_a_settings_file_can_be_named(phyla: RunPhyla) -> None:
    Path("other.toml").write_text("[toy]\nwheels = 8\n")
    assert phyla("serve", "--config", "other.toml").out == "serving None on 8 wheels\n"


def test_an_unknown_flag_names_the_near_match(phyla: RunPhyla) -> None:
    ran = phyla("serve", "--wheel", "3")
    assert ran.status == 2
    assert "--wheels" in ran.err


def test_an_unknown_command_names_the_near_match(phyla: RunPhyla) -> None:
    ran = phyla("serv")
    assert ran.status == 2
    assert "There is no command 'serv'. Did you mean 'serve'?" in ran.err


def test_a_bad_value_names_the_flag_and_exits_with_2(phyla: RunPhyla) -> None:
    ran = phyla("serve", "--wheels", "0")
    assert ran.status == 2
    assert "--wheels is '0'" in ran.err


def test_an_unknown_variable_is_a_note_on_stderr(phyla: RunPhyla) -> None:
    ran = phyla("serve", env={"PHYLA_TOY__WHEEL": "3"})
    assert ran.status == 0
    assert "Note: PHYLA_TOY__WHEEL is set, but nothing here reads it. Did you mean PHYLA_TOY__WHEELS?" in ran.err


def test_a_disabled_plugin_takes_its_flags_along(phyla: RunPhyla) -> None:
    ran = phyla("plugins", "--disable", "toy", "--wheels", "3")
    assert ran.status == 2
    assert "--wheels" in ran.err


def test_no_plugins_leaves_core_alone(phyla: RunPhyla) -> None:
    ran = phyla("plugins", "--no-plugins")
    assert ran.status == 0
    assert "disabled by --no-plugins" in ran.out


def test_disabling_an_unknown_plugin_names_the_near_match(phyla: RunPhyla) -> None:
    ran = phyla("plugins", "--disable=toyy")
    assert ran.status == 2
    assert "There is no plugin 'toyy'. Did you mean 'toy'?" in ran.err


def test_without_a_server_a_bare_call_says_what_there_is(phyla: RunPhyla) -> None:
    ran = phyla("--no-plugins")
    assert ran.status == 2
    assert "There is no command 'serve'" in ran.err


@pytest.mark.parametrize("flag", [flag for flag, known in FOREIGN_FLAGS.items() if known.refused])
def test_a_flag_that_means_nothing_here_is_refused_with_the_remedy(phyla: RunPhyla, flag: str) -> None:
    value = ["8"] if FOREIGN_FLAGS[flag].takes_value else []
    ran = phyla("serve", flag, *value)
    assert ran.status == 2
    assert f"{flag} isn't taken here: {FOREIGN_FLAGS[flag].meaning}." in ran.err


@pytest.mark.parametrize("flag", [flag for flag, known in FOREIGN_FLAGS.items() if not known.refused])
def test_a_flag_that_needs_no_switch_here_is_accepted_with_a_note(phyla: RunPhyla, flag: str) -> None:
    ran = phyla("serve", flag, "8")
    assert ran.status == 0
    assert f"Note: {flag} is accepted" in ran.err


def test_a_refused_flag_is_accepted_with_the_value_that_changes_nothing(phyla: RunPhyla) -> None:
    ran = phyla("serve", "--kv-group-size", "64")
    assert ran.status == 0
    assert "Note: --kv-group-size is accepted: that is what happens here anyway." in ran.err


def test_a_plugin_may_take_over_a_flag_of_other_servers(phyla: RunPhyla, plugin: MakePlugin) -> None:
    taking = plugin(
        "taking",
        "from phyla import PluginSettings, hookimpl, setting\n"
        "phyla_api = 1\n"
        "class TakingSettings(PluginSettings, section='taking'):\n"
        "    size: int = setting(1, flag='--prompt-cache-size')\n"
        "@hookimpl\n"
        "def phyla_settings():\n"
        "    return TakingSettings\n",
    )
    ran = phyla("serve", "--prompt-cache-size", "8", more=(taking,))
    assert (ran.status, ran.err) == (0, "")


def test_a_plugin_that_raises_at_import_stops_a_command_and_is_listed_by_plugins(
    phyla: RunPhyla, plugin: MakePlugin
) -> None:
    broken = plugin("broken", "raise ValueError('on purpose')\n")
    stopped = phyla("serve", more=(broken,))
    assert stopped.status == 1
    assert "Plugin 'broken': importing cli_broken" in stopped.err
    assert "--disable broken" in stopped.err
    listed = phyla("plugins", more=(broken,))
    assert listed.status == 1
    assert "on purpose" in listed.out
    assert phyla("serve", "--disable", "broken", more=(broken,)).status == 0


def test_plugins_lists_hooks_and_state(phyla: RunPhyla) -> None:
    lines = phyla("plugins").out.splitlines()
    assert lines[0].split() == ["NAME", "DISTRIBUTION", "VERSION", "STATE", "HOOKS"]
    toy = next(line for line in lines if line.startswith("toy"))
    assert toy.endswith("loaded  commands, families, report, settings")


def test_a_command_explains_its_settings_by_section(phyla: RunPhyla) -> None:
    out = phyla("serve", "--help").out
    assert [word for word in ("--wheels", "--kv-scheme", "--route", "selection", "toy") if word not in out] == []
