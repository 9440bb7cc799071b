"""What one run of the command line knows before a command begins: the plugins and everybody's settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from phyla.cli.foreign import FOREIGN_FLAGS
from phyla.plugins import PluginManager, discover
from phyla.plugins.settings import PluginsSettings
from phyla.settings import PluginSettings, Settings, declared_fields, load_settings

CONFIG_FLAG = "--config"
FIRST_FLAGS = {"--disable": True, "--no-plugins": False, CONFIG_FLAG: True}
"""Flags that decide which plugins there are, and so which other flags there are; whether each takes a value."""


@dataclass(frozen=True)
class Session:
    """The plugins that are loaded, and the sections that they and core declare."""

    manager: PluginManager
    sections: tuple[type[PluginSettings], ...]
    config: Path | None = None
    """The settings file that was named, or None for the usual place."""

    env: Mapping[str, str] | None = None
    """Variables; None reads the process's own."""

    def load(self, flags: Mapping[str, Any]) -> Settings:
        """All settings, with these flags on top.

        Raises:
            UsageError: a flag, variable or key that nobody declares, or a bad value.
        """
        declared = {
            spelling for section in self.sections for one in declared_fields(section) for spelling in one.spellings
        }
        foreign = [flag for flag in flags if flag in FOREIGN_FLAGS and flag not in declared]
        ours = {flag: value for flag, value in flags.items() if flag not in foreign}
        notices = [FOREIGN_FLAGS[flag].notice(flag) for flag in foreign]
        absent = [info.name for info in self.manager.plugins() if info.state != "loaded"]
        settings = load_settings(self.sections, flags=ours, env=self.env, file=self.config, absent=absent)
        return settings.with_notices(notices)


def open_session(
    arguments: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    entry_points: Iterable[EntryPoint] | None = None,
    keep_going: bool = False,
) -> Session:
    """Find the plugins as the arguments, variables and file say.

    Args:
        arguments: the command line; only the flags that decide about plugins are read.
        env: variables; None reads the process's own.
        entry_points: what is installed; None looks.
        keep_going: list broken plugins instead of raising.

    Raises:
        UsageError: a disabled name that isn't installed, or a bad value.
        PluginError: a plugin can't be loaded.
    """
    flags = _first_flags(arguments)
    config = flags.pop(CONFIG_FLAG, [None])[-1]
    file = Path(config) if config is not None else None
    first = load_settings([PluginsSettings], flags=flags, env=env, file=file, partial=True).section(PluginsSettings)
    manager = discover(first.disable, first.no_plugins, entry_points=entry_points, keep_going=keep_going)
    return Session(manager, manager.settings_sections(), file, env)


def _first_flags(arguments: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    waiting = iter(arguments)
    for argument in waiting:
        if argument == "--":
            break
        flag, equals, value = argument.partition("=")
        if flag not in FIRST_FLAGS:
            continue
        if not FIRST_FLAGS[flag]:
            found[flag] = True
            continue
        given = value if equals else next(waiting, None)
        if given is not None:
            found.setdefault(flag, []).append(given)
    return found
