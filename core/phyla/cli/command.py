"""A command whose options are the settings of core and of every plugin that is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import rich_click as click

from phyla.cli.options import arguments_given, flags_given, settings_options
from phyla.cli.session import Session
from phyla.settings import Settings
from phyla.settings.log import LogSettings, start_logging

HINT = (
    "Each flag is also a variable (PHYLA_SECTION__NAME) and a key under its section in phyla.toml; a flag beats a "
    "variable, a variable beats the file. docs/settings.md lists them all."
)


class Callback(Protocol):
    """What a settings command runs."""

    def __call__(self, session: Session, settings: Settings, **arguments: Any) -> int | None:
        """`arguments` are the command's own parameters; the result is the exit status, None for 0."""
        ...


def write_note(text: str) -> None:
    """To standard error, so that what a command answers stays clean."""
    click.echo(f"Note: {text}", err=True)


class SettingsCommand(click.RichCommand):
    """For plugins too: `group.add_command(SettingsCommand("serve", run, arguments=[...], help=...))`.

    Args:
        name: of the command.
        run: called with the session, the filled settings and the command's own parameters.
        arguments: the command's own parameters.
        help: shown by `--help`; the first sentence by `phyla --help`.
        epilog: examples.
        wants_flags: `run` also gets `flags`, the settings' flags as they were given: spelling to value, a list of them
            where one may be repeated, True for a switch. For a command that starts another process.
    """

    def __init__(
        self,
        name: str,
        run: Callback | Callable[..., int | None],
        *,
        arguments: Sequence[click.Parameter] = (),
        help: str = "",
        epilog: str = HINT,
        wants_flags: bool = False,
    ) -> None:
        super().__init__(name=name, params=list(arguments), help=help, epilog=epilog, callback=None)
        self._run = run
        self._wants_flags = wants_flags

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The command's own parameters, then everybody's settings."""
        own = super().get_params(ctx)
        session = ctx.find_object(Session)
        assert session is not None, "settings commands run under the phyla group"
        cached = ctx.meta.setdefault("phyla.options", {})
        if self.name not in cached:
            cached[self.name] = settings_options(session.sections)
        return [*own[:-1], *cached[self.name], *own[-1:]]

    def invoke(self, ctx: click.Context) -> Any:
        """Load the settings, start logging, show what was accepted without effect, and run."""
        session = ctx.find_object(Session)
        assert session is not None, "settings commands run under the phyla group"
        flags = flags_given(ctx.params)
        settings = session.load(flags)
        start_logging(settings.section(LogSettings))
        for notice in settings.notices:
            write_note(notice)
        given = {"flags": flags} if self._wants_flags else {}
        status = self._run(session, settings, **given, **arguments_given(ctx.params))
        ctx.exit(status or 0)
