"""Filling sections: flag over variable over file over default, each value with its origin."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from phyla.errors import SettingsError, UnknownName
from phyla.settings.accepted import accepted_notice
from phyla.settings.filled import Origin, Settings
from phyla.settings.section import PREFIX, PluginSettings, SettingField, declared_fields

CONFIG_VARIABLE = f"{PREFIX}CONFIG"
FILE_NAME = "phyla.toml"


def load_settings(
    sections: Sequence[type[PluginSettings]],
    *,
    flags: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    file: Path | None = None,
    absent: Collection[str] = (),
    partial: bool = False,
) -> Settings:
    """Fill the sections.

    Args:
        sections: the classes to fill; two with one name, or two fields with one flag or variable, are an error.
        flags: spelling to value: `{"--batch": "4"}`; a flag that takes no value holds True.
        env: variables to read; None reads the process's own.
        file: the settings file; None takes the one `PHYLA_CONFIG` names, else `phyla.toml` in the working folder.
        absent: sections of plugins that are switched off: the file may still have them.
        partial: unknown flags, variables and sections belong to somebody else and are passed over.

    Raises:
        SettingsError: a known name has a bad value; names the values.
        UnknownName: a flag, section or key that nobody declares; names the near match.
    """
    variables = os.environ if env is None else env
    draft = _Draft(_by_name(sections), partial)
    path = _settings_file(file, variables)
    if path is not None:
        draft.take_file(path, absent)
    draft.take_variables({name: text for name, text in variables.items() if name.startswith(PREFIX)})
    draft.take_flags(flags or {})
    return draft.filled()


def flags_from_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword options of the library as flags: `kv_scheme="affine:4"` is `--kv-scheme affine:4`."""
    return {f"--{name.replace('_', '-')}": value for name, value in options.items() if value is not None}


@dataclass
class _Draft:
    """Values on their way into sections: (section, field) to what set it last."""

    sections: Mapping[str, type[PluginSettings]]
    partial: bool
    values: dict[tuple[str, str], Any] = field(default_factory=dict)
    origins: dict[tuple[str, str], Origin] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.fields = [one for section in self.sections.values() for one in declared_fields(section)]
        self.by_flag = _unique(self.fields, lambda one: one.spellings, "flag")
        self.by_variable = _unique(self.fields, _variables_of, "variable")

    def put(self, one: SettingField, value: Any, origin: Origin) -> None:
        key = (one.section.section_name, one.name)
        self.values[key] = value
        self.origins[key] = origin

    def take_file(self, path: Path, absent: Collection[str]) -> None:
        for name, table in _read(path).items():
            section = self.sections.get(name)
            if section is None:
                if self.partial:
                    continue
                if name in absent:
                    self.notices.append(f"{path.name}: section [{name}] is passed over: its plugin is switched off.")
                    continue
                raise UnknownName(f"settings section in {path.name} called", name, self.sections)
            if not isinstance(table, dict):
                raise SettingsError(f"{path.name}: '{name}' is a section; write [{name}] and its keys below it.")
            fields = {one.name: one for one in declared_fields(section)}
            for key, value in table.items():
                if key not in fields:
                    raise UnknownName(f"setting in [{name}] of {path.name} called", key, fields)
                self.put(fields[key], value, Origin("file", f"{path.name} [{name}] {key}"))

    def take_variables(self, variables: Mapping[str, str]) -> None:
        for name, text in variables.items():
            one = self.by_variable.get(name)
            if one is not None:
                self._take_variable(one, name, text)
            elif not self.partial and name != CONFIG_VARIABLE:
                self.notices.append(accepted_notice(name) or _unknown_variable(name, self.by_variable))

    def take_flags(self, flags: Mapping[str, Any]) -> None:
        unknown = [spelling for spelling in flags if spelling not in self.by_flag]
        if unknown and not self.partial:
            raise UnknownName("flag", unknown[0], self.by_flag)
        known = [(self.by_flag[spelling], spelling) for spelling in flags if spelling in self.by_flag]
        # A preset's switch comes first, so that a flag given beside it wins.
        for one, spelling in sorted(known, key=lambda pair: pair[1] not in pair[0].switches):
            self._take_flag(one, spelling, flags[spelling])

    def _take_flag(self, one: SettingField, spelling: str, given: Any) -> None:
        value = _flag_value(one, spelling, given)
        earlier = self.origins.get((one.section.section_name, one.name))
        if (
            earlier is not None
            and earlier.by == "flag"
            and earlier.where not in one.switches
            and self.values[one.section.section_name, one.name] != value
        ):
            raise SettingsError(f"{earlier.where} and {spelling} set the same thing differently; give one of them.")
        self.put(one, value, Origin("flag", spelling))

    def filled(self) -> Settings:
        made = [self._section(name, section) for name, section in self.sections.items()]
        return Settings(made, self.origins, self.notices)

    def _take_variable(self, one: SettingField, name: str, text: str) -> None:
        if one.takes_word and name == one.variable:
            # The flag's own words, which the field reads; spelt alike, so that a lever that agrees is no contradiction.
            text = {"on": "1", "off": "0"}.get(text.lower(), text)
        elif one.is_bool and text not in ("0", "1"):
            raise SettingsError(f"{name} is {text!r}; it takes 1 (on) or 0 (off).")
        value: Any = [item.strip() for item in text.split(",") if item.strip()] if one.is_many else text
        if name == one.inverted_lever:
            value = "1" if text == "0" else "0"
        earlier = self.origins.get((one.section.section_name, one.name))
        if (
            earlier is not None
            and earlier.by == "variable"
            and self.values[one.section.section_name, one.name] != value
        ):
            raise SettingsError(f"{earlier.where} and {name} set the same thing differently; set one of them.")
        self.put(one, value, Origin("variable", name))

    def _section(self, name: str, section: type[PluginSettings]) -> PluginSettings:
        given = {key: value for (owner, key), value in self.values.items() if owner == name}
        try:
            return section.model_validate(given)
        except ValidationError as error:
            raise SettingsError("\n".join(self._complaint(section, one) for one in error.errors())) from error

    def _complaint(self, section: type[PluginSettings], error: Any) -> str:
        key = str(error["loc"][0]) if error["loc"] else ""
        origin = self.origins.get((section.section_name, key))
        if origin is None:
            return f"Settings section [{section.section_name}]{' ' + key if key else ''}: {_plainly(error['msg'])}."
        value = self.values[section.section_name, key]
        return f"{origin.where} is {value!r}: {_plainly(error['msg'])}."


def _by_name(sections: Sequence[type[PluginSettings]]) -> dict[str, type[PluginSettings]]:
    named: dict[str, type[PluginSettings]] = {}
    for section in sections:
        other = named.setdefault(section.section_name, section)
        if other is not section:
            raise SettingsError(
                f"Two settings sections are called [{section.section_name}]: {_home(other)} and {_home(section)}. "
                "Rename one with PluginSettings's `section` argument."
            )
    return named


def _unique(fields: Sequence[SettingField], names_of: Any, what: str) -> dict[str, SettingField]:
    owners: dict[str, SettingField] = {}
    for one in fields:
        for name in names_of(one):
            other = owners.setdefault(name, one)
            if other is not one:
                raise SettingsError(
                    f"The {what} {name} is declared twice: by {_home(other.section)}.{other.name} and "
                    f"{_home(one.section)}.{one.name}. Switch one of the two off with --disable."
                )
    return owners


def _variables_of(one: SettingField) -> tuple[str, ...]:
    return (one.variable, *one.levers, *((one.inverted_lever,) if one.inverted_lever else ()))


def _settings_file(file: Path | None, variables: Mapping[str, str]) -> Path | None:
    if file is None and CONFIG_VARIABLE in variables:
        file = Path(variables[CONFIG_VARIABLE])
    if file is not None:
        if not file.is_file():
            raise SettingsError(f"There is no settings file {file}.")
        return file
    here = Path(FILE_NAME)
    return here if here.is_file() else None


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path.name} isn't valid TOML: {error}.") from error


def _flag_value(one: SettingField, spelling: str, given: Any) -> Any:
    if spelling in one.switches:
        return one.switches[spelling]
    takes_back = one.is_switch and spelling != one.flag and spelling not in one.aliases
    return not given if takes_back else given


def _unknown_variable(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return f"{name} is set, but nothing here reads it.{hint}"


def _home(section: type[PluginSettings]) -> str:
    return f"{section.__module__}.{section.__qualname__}"


def _plainly(message: str) -> str:
    return message.removeprefix("Value error, ").rstrip(".")
