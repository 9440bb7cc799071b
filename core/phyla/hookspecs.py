"""Every hook a plugin may implement, in the order of the program's life.

Hooks declare, protocols run: each is called at start-up (or, where it says so, per request) and returns small frozen
objects whose `create`, `bind` or `open` imports the heavy modules only when chosen. None is called per token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    import click

    from phyla.baseline import Baseline
    from phyla.checkpoint import CheckpointOpener
    from phyla.draft import ConstraintEngine, DraftMethod
    from phyla.draft.fill import FillSource
    from phyla.engine import EngineStarted, RequestFinished, StepFinished
    from phyla.kv import CacheCodec, KVScheme
    from phyla.model import Family
    from phyla.output import OutputParserFactory
    from phyla.plan import Candidates, Plan, PlanAnswer
    from phyla.sampling import NamedSampler
    from phyla.settings import PluginSettings, Settings

PROJECT = "phyla"
API_VERSION = 1
"""A plugin package says `phyla_api = 1`; another number, or none, is refused."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def phyla_settings() -> type[PluginSettings] | tuple[type[PluginSettings], ...]:  # type: ignore[empty-body]
    """The plugin's settings section, or sections. Called first, before anything is configured."""


@hookspec
def phyla_commands(group: click.Group) -> None:
    """Add commands to the `phyla` command line. Must import nothing heavy; a command's body may."""


@hookspec
def phyla_open_checkpoint(settings: Settings) -> list[CheckpointOpener]:  # type: ignore[empty-body]
    """Ways to open a model reference. The highest rank opens it; a tie is an error naming both."""


@hookspec
def phyla_families(settings: Settings) -> list[Family]:  # type: ignore[empty-body]
    """Model families. The highest claim on a config binds it; a tie is an error naming both."""


@hookspec
def phyla_output_parsers(settings: Settings) -> list[OutputParserFactory]:  # type: ignore[empty-body]
    """Dialects: how a family's answers spell reasoning and tool calls."""


@hookspec
def phyla_kv_schemes(settings: Settings) -> list[KVScheme]:  # type: ignore[empty-body]
    """Ways to store keys and values."""


@hookspec
def phyla_methods(settings: Settings) -> list[DraftMethod]:  # type: ignore[empty-body]
    """Draft methods. Core verifies what they propose: a method can be slow, never wrong."""


@hookspec
def phyla_proposers(settings: Settings) -> list[ConstraintEngine | FillSource]:  # type: ignore[empty-body]
    """Constraint engines (grammars) and fill sources."""


@hookspec
def phyla_samplers(settings: Settings) -> list[NamedSampler]:  # type: ignore[empty-body]
    """Logits processors and samplers by name."""


@hookspec
def phyla_cache_codecs(settings: Settings) -> list[CacheCodec]:  # type: ignore[empty-body]
    """How prefix entries become bytes."""


@hookspec
def phyla_baselines(settings: Settings) -> list[Baseline]:  # type: ignore[empty-body]
    """Other programs that `phyla bench engine --against NAME` measures beside this one."""


@hookspec
def phyla_plan(candidates: Candidates, settings: Settings) -> PlanAnswer | None:
    """Replace a default choice. Never overrides an explicit one; two answers on one question are an error."""


@hookspec
def phyla_report(plan: Plan) -> list[str]:  # type: ignore[empty-body]
    """Lines to add to `phyla explain`."""


@hookspec
def phyla_routes(settings: Settings) -> list[Any]:  # type: ignore[empty-body]
    """Litestar route handlers to mount beside the built-in ones; keys guard them like every other route."""


@hookspec
def phyla_engine_started(record: EngineStarted) -> None:
    """The engine takes requests. Off the engine thread; what a listener raises is logged, decoding goes on."""


@hookspec
def phyla_step_finished(record: StepFinished) -> None:
    """One step ended. Off the engine thread, possibly some steps later."""


@hookspec
def phyla_request_finished(record: RequestFinished) -> None:
    """One request ended, however it ended. Off the engine thread."""
