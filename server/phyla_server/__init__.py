"""The HTTP server: OpenAI's protocol over one engine, closed by default.

`phyla serve` binds the port before it loads anything, serves on one event loop and leaves all MLX work to the engine's
own thread.
"""

from __future__ import annotations

from importlib import metadata

import click
from phyla import PluginSettings, hookimpl

phyla_api = 1


@hookimpl
def phyla_settings() -> type[PluginSettings]:
    from phyla_server.settings import ServerSettings

    return ServerSettings


@hookimpl
def phyla_commands(group: click.Group) -> None:
    from phyla_server.command import serve

    group.add_command(serve)


def version() -> str:
    """Of the installed distribution."""
    return metadata.version("phyla")
