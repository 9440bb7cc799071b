"""`phyla serve`: check what is cheap to check, take the port, load, serve, drain."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING

import rich_click as click
from phyla import Settings
from phyla.cli.chosen_model import chosen_model
from phyla.cli.command import SettingsCommand
from phyla.cli.session import Session

from phyla_server.settings import ServerSettings

if TYPE_CHECKING:
    from phyla.plan import Plan

    from phyla_server.http_server import HttpServer
    from phyla_server.local_library import LocalLibrary


def _serve(session: Session, settings: Settings, model: str | None) -> int:
    from phyla_server.access_log import start_logging
    from phyla_server.interpreter import freeze_garbage, share_interpreter
    from phyla_server.keys import KeyRing
    from phyla_server.listening import open_listener

    own = settings.section(ServerSettings)
    keys = KeyRing.from_settings(own)
    _warn_about_keys(settings)
    share_interpreter()
    start_logging(sys.stderr)
    with open_listener(own, keys) as listener:
        from phyla.library import load_with

        from phyla_server.http_server import HttpServer
        from phyla_server.ready_card import ready_card
        from phyla_server.served import served_by

        reference = chosen_model(session, settings, model)
        with load_with(reference, session.manager, settings) as loaded:
            loaded.constraints.warm_up()
            loaded.renderer.warm_up()
            routes = [one.value for one in session.manager.routes(settings)]
            served = served_by(loaded, session.manager, settings)
            server = HttpServer(
                served, settings, keys, listener, plugin_routes=routes, others=_library(session, settings)
            )
            server.on_ready(freeze_garbage)
            server.on_ready(lambda: click.echo(ready_card(loaded.plan, settings, server.url)))
            _warn_about_memory(loaded.plan)
            return asyncio.run(_until_signalled(server))


def _library(session: Session, settings: Settings) -> LocalLibrary:
    from phyla.registry import ModelsSettings, local_models

    from phyla_server.local_library import LocalLibrary

    models = settings.section(ModelsSettings)
    return LocalLibrary(lambda: local_models(models), [one.value for one in session.manager.families(settings)])


async def _until_signalled(server: HttpServer) -> int:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.stop)
    return await server.run()


def _warn_about_memory(plan: Plan) -> None:
    from phyla_server.ceiling import near_ceiling, read_wired_limit_mb

    warning = near_ceiling(plan.facts.weight_bytes.total, plan.backend, read_wired_limit_mb(plan.backend))
    if warning is not None:
        click.echo(f"Warning: {warning}", err=True)


def _warn_about_keys(settings: Settings) -> None:
    for field in ("api_key", "admin_key"):
        if settings.origin(ServerSettings, field).by == "flag":
            flag = f"--{field.replace('_', '-')}"
            click.echo(
                f"Warning: {flag} on the command line is visible to every user of this machine. "
                f"Use {flag}-file or PHYLA_SERVER__{field.upper()}.",
                err=True,
            )


serve = SettingsCommand(
    "serve",
    _serve,
    arguments=[click.RichArgument(["model"], required=False, metavar="[MODEL]")],
    help="Serve a model over HTTP, with OpenAI's API.\n\n"
    "Listens on 127.0.0.1:8080 unless told otherwise; beyond loopback only with a key.",
)
