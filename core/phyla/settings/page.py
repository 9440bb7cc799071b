"""The reference page of all settings, made from their fields."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence

from phyla.settings.accepted import ACCEPTED_LEVERS
from phyla.settings.section import PREFIX, PluginSettings, SettingField, declared_fields

_HEAD = """# Settings

Made from the settings' own declarations; don't edit it by hand.

A value is set by a flag, else by a variable, else by a key in `phyla.toml` (in the working folder, or where `--config`
or `PHYLA_CONFIG` says), else it has its default. An unknown flag, section or key is an error that names the near match;
an unknown `PHYLA_` variable is a warning. In variables flags without a value are `1` and `0`, others have the flag's
values (`on`, `off`), and several values are separated by commas. Sizes take a suffix (`8GiB`, `20GB`, `800MB`).
`phyla explain MODEL` shows what the settings lead to.
"""


def settings_page(sections: Sequence[type[PluginSettings]]) -> str:
    """Markdown with one heading per section and one per setting."""
    parts = [_HEAD]
    for section in sorted(sections, key=lambda one: one.section_name):
        parts.append(f"\n## `[{section.section_name}]`\n\n{_flat(inspect.getdoc(section) or '')}\n")
        parts.extend("\n" + "\n".join(_setting(one)) + "\n" for one in declared_fields(section))
    parts.append("\n" + "\n".join(_accepted()) + "\n")
    return "".join(parts)


def _setting(one: SettingField) -> Iterator[str]:
    yield f"### `{one.name}`"
    yield ""
    yield one.description.strip()
    yield ""
    if one.flag:
        value = (
            ""
            if one.is_switch
            else " on|off"
            if one.takes_word
            else f" {one.metavar or '|'.join(one.choices) or 'VALUE'}"
        )
        more = f" (also {', '.join(f'`{alias}`' for alias in one.aliases)})" if one.aliases else ""
        yield f"- flag: `{one.flag}{value}`{more}"
    for flag, stands_for in one.switches.items():
        yield f"- flag: `{flag}` for `{stands_for}`"
    yield f"- variable: {', '.join(f'`{name}`' for name in (one.variable, *one.levers))}"
    if one.inverted_lever:
        yield f"- variable: `{one.inverted_lever}=1` switches it off"
    yield f"- default: {_default(one)}"


def _accepted() -> Iterator[str]:
    yield "## Accepted variables"
    yield ""
    yield "Upstream honours these; here they are answered with one line and change nothing."
    yield ""
    yield "| variable | what happens |"
    yield "| --- | --- |"
    for suffix, meaning in ACCEPTED_LEVERS.items():
        yield f"| `{PREFIX}{suffix}` | {meaning} |"


def _default(one: SettingField) -> str:
    if one.default is None or one.default == ():
        return "none"
    if one.is_bool:
        return "on" if one.default else "off"
    return f"`{one.default}`"


def _flat(text: str) -> str:
    return re.sub(r"[ \n]+", " ", text).strip()
