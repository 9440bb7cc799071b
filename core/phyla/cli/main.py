"""The entry point: find the plugins, build the group, run a command, turn errors into messages and exit codes."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterable, Mapping, Sequence

import rich_click as click

from phyla.cli.bench.group import bench_group
from phyla.cli.doctor import doctor
from phyla.cli.explain import explain
from phyla.cli.generate import generate
from phyla.cli.get import get
from phyla.cli.group import PhylaGroup
from phyla.cli.ls import ls
from phyla.cli.plugins import list_plugins
from phyla.cli.session import Session, open_session
from phyla.errors import LayoutError, PhylaError, UsageError

DEFAULT_COMMAND = "serve"
TOP_LEVEL = ("--help", "-h", "--version", "-v")
LISTING = ("plugins", "doctor")
"""Commands that report a broken plugin instead of failing on it."""

USAGE_STATUS = 2
FAILURE_STATUS = 1
INTERRUPTED_STATUS = 130


def main(
    arguments: Sequence[str] | None = None,
    *,
    env: Mapping[str, str] | None = None,
    entry_points: Iterable[importlib.metadata.EntryPoint] | None = None,
) -> int:
    """Run the command line.

    Args:
        arguments: without the program's name; None reads the process's own.
        env: variables; None reads the process's own.
        entry_points: what is installed; None looks.

    Returns:
        The exit status: 0, 1 for a failure, 2 for a usage error, 130 when interrupted.
    """
    try:
        return _run(list(sys.argv[1:] if arguments is None else arguments), env, entry_points)
    except PhylaError as error:
        click.echo(f"Error: {error}", err=True)
        for note in getattr(error, "__notes__", ()):
            click.echo(f"  {note}", err=True)
        return USAGE_STATUS if isinstance(error, UsageError | LayoutError) else FAILURE_STATUS
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED_STATUS


def build_group(session: Session) -> click.RichGroup:
    """The group with core's commands and the plugins'."""
    group = PhylaGroup(
        name="phyla",
        help="Serve language models on MLX. Without a command: serve.",
        epilog="phyla serve --help shows what can be set; phyla explain MODEL says what would run, and why.",
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    group = click.version_option(importlib.metadata.version("phyla"), "--version", "-v", prog_name="phyla")(group)
    for command in (list_plugins, explain, doctor, generate, get, ls, bench_group()):
        group.add_command(command)
    session.manager.add_commands(group)
    return group


def _run(
    arguments: list[str],
    env: Mapping[str, str] | None,
    entry_points: Iterable[importlib.metadata.EntryPoint] | None,
) -> int:
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in TOP_LEVEL):
        arguments = [DEFAULT_COMMAND, *arguments]
    session = open_session(arguments, env=env, entry_points=entry_points, keep_going=arguments[0] in LISTING)
    group = build_group(session)
    status = group.main(arguments, prog_name="phyla", standalone_mode=False, obj=session)
    return status if isinstance(status, int) else 0
