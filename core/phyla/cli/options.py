"""Command-line options made from the fields of settings sections."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import rich_click as click

from phyla.cli.foreign import FOREIGN_FLAGS, ForeignFlag
from phyla.cli.session import CONFIG_FLAG
from phyla.errors import UsageError
from phyla.settings import PluginSettings, SettingField, declared_fields

ABSENT = None


def settings_options(sections: Sequence[type[PluginSettings]]) -> list[click.Parameter]:
    """Options for every field with a flag, and hidden ones for aliases and for other servers' flags.

    Every spelling is an option of its own, so that messages can name the one that was used.
    """
    fields = [one for section in sections for one in declared_fields(section)]
    options = [option for one in fields for option in _options_of(one)]
    taken = {spelling for one in fields for spelling in one.spellings}
    options.extend(_foreign(flag, known) for flag, known in FOREIGN_FLAGS.items() if flag not in taken)
    options.append(
        click.RichOption(
            [CONFIG_FLAG, _parameter(CONFIG_FLAG)],
            metavar="PATH",
            expose_value=False,
            panel="plugins",
            help="Settings file; by default phyla.toml in the working folder.",
        )
    )
    return options


def flags_given(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Take the settings' flags out of a command's parameters: spelling to value, in the order of declaration."""
    flags = {}
    for name, value in parameters.items():
        if name.startswith(_PREFIX) and value is not ABSENT and value != () and value is not False:
            flags[_spelling(name)] = list(value) if isinstance(value, tuple) else value
    return flags


def arguments_given(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The command's own parameters."""
    return {name: value for name, value in parameters.items() if not name.startswith(_PREFIX)}


_PREFIX = "setting_flag_"


def _options_of(one: SettingField) -> Iterator[click.Parameter]:
    for spelling in one.spellings:
        takes_value = not one.is_switch and spelling not in one.switches
        shown = spelling == one.flag or (spelling in one.switches and one.flag is None)
        kind: dict[str, Any] = (
            {"metavar": _metavar(one), "multiple": one.is_many} if takes_value else {"is_flag": True, "default": False}
        )
        yield click.RichOption(
            [spelling, _parameter(spelling)],
            hidden=not shown,
            panel=one.section.section_name,
            help=_help(one) if spelling == one.flag or one.flag is None else "",
            **kind,
        )


def _foreign(flag: str, known: ForeignFlag) -> click.Parameter:
    def refuse(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        if known.refuses(value):
            raise UsageError(f"{flag} isn't taken here: {known.meaning}.")
        return value

    kind: dict[str, Any] = {} if known.takes_value else {"is_flag": True, "default": False}
    return click.RichOption([flag, _parameter(flag)], hidden=True, callback=refuse, **kind)


def _metavar(one: SettingField) -> str:
    if one.metavar:
        return one.metavar
    if one.takes_word:
        return "on|off"
    return "|".join(one.choices) if one.choices else "VALUE"


def _help(one: SettingField) -> str:
    text = re.sub(r"\s+", " ", one.description).strip()
    notes = [f"also {', '.join(one.aliases)}"] if one.aliases else []
    if one.default not in (None, (), False, True, "") and not one.switches:
        notes.append(f"default: {one.default}")
    if one.takes_word and one.default is not None:
        notes.append(f"default: {'on' if one.default else 'off'}")
    return f"{text} [{'; '.join(notes)}]" if notes else text


def _parameter(spelling: str) -> str:
    return f"{_PREFIX}{spelling.removeprefix('--').replace('-', '_')}"


def _spelling(parameter: str) -> str:
    return f"--{parameter.removeprefix(_PREFIX).replace('_', '-')}"
