"""A logbook: one of every hook that isn't about models, so that each is shown and tested from outside."""

import logging
from pathlib import Path

import click
from phyla import CacheCodec, NamedSampler, Plan, PluginSettings, Settings, hookimpl
from phyla.engine import EngineStarted, RequestFinished, StepFinished
from phyla.plan import Candidates, PlanAnswer

phyla_api = 1

_log = logging.getLogger(__name__)


class LogbookSettings(PluginSettings, section="logbook"):
    """What the logbook prefers."""

    dtype: str = ""
    """A dtype to choose where nothing else was asked for."""


@hookimpl
def phyla_settings() -> type[PluginSettings]:
    return LogbookSettings


@hookimpl
def phyla_commands(group: click.Group) -> None:
    @click.command("logbook", help="Count the lines of a logbook.")
    @click.argument("path", type=click.Path(exists=True, path_type=Path))
    def logbook(path: Path) -> None:
        click.echo(f"{len(path.read_text(encoding='utf-8').splitlines())} lines")

    group.add_command(logbook)


@hookimpl
def phyla_samplers() -> list[NamedSampler]:
    def create(request):
        return lambda history, logits: -logits

    return [NamedSampler("contrary", "processor", create, description="Turns every preference around.")]


@hookimpl
def phyla_cache_codecs() -> list[CacheCodec]:
    from phyla_logbook.pages import PAGES

    return [PAGES]


@hookimpl
def phyla_plan(candidates: Candidates, settings: Settings) -> PlanAnswer | None:
    wanted = settings.section(LogbookSettings).dtype
    return PlanAnswer({"dtype": wanted}, "the logbook says so") if wanted else None


@hookimpl
def phyla_report(plan: Plan) -> list[str]:
    return [f"{plan.model_id} is in the logbook"]


@hookimpl
def phyla_routes() -> list:
    from litestar import get

    @get("/logbook")
    async def logbook() -> dict[str, str]:
        return {"says": "so"}

    return [logbook]


@hookimpl
def phyla_engine_started(record: EngineStarted) -> None:
    _log.info("engine started: %s", record.model_id)


@hookimpl
def phyla_step_finished(record: StepFinished) -> None:
    _log.info("step: %s of %s rows", record.kind, record.num_rows)


@hookimpl
def phyla_request_finished(record: RequestFinished) -> None:
    _log.info("request: %s", record.outcome)
