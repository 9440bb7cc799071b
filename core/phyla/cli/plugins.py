"""`phyla plugins`: what is installed, what it implements, and why something isn't loaded."""

from __future__ import annotations

import rich_click as click

from phyla.cli.columns import columns
from phyla.cli.command import SettingsCommand
from phyla.cli.session import Session
from phyla.plugins import PluginInfo
from phyla.settings import Settings


def _list(session: Session, settings: Settings) -> int:
    infos = session.manager.plugins()
    head = ("NAME", "DISTRIBUTION", "VERSION", "STATE", "HOOKS")
    click.echo(columns([head, *(_row(info) for info in infos)]))
    for info in infos:
        if info.state == "failed":
            click.echo(f"\n{info.reason}")
    return 1 if any(info.state == "failed" for info in infos) else 0


def _row(info: PluginInfo) -> tuple[str, str, str, str, str]:
    state = f"disabled by {info.reason}" if info.state == "disabled" else info.state
    hooks = ", ".join(hook.removeprefix("phyla_") for hook in info.hooks) or "-"
    return info.name, info.distribution or "-", info.version or "-", state, hooks


list_plugins = SettingsCommand(
    "plugins",
    _list,
    help="List plugins: name, distribution, version, state and hooks.\n\n"
    "Switch one off with --disable NAME; a broken one is listed with its error.",
)
