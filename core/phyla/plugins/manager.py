"""The plugin manager: what is loaded, and one typed method per hook."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import pluggy

from phyla import hookspecs
from phyla.errors import PluginApiError, PluginError, UnknownName
from phyla.plugins.declared import Declared, plugin_border
from phyla.plugins.events import EventDelivery

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

T = TypeVar("T")
PluginState = Literal["loaded", "disabled", "failed"]
EVENTS = ("phyla_engine_started", "phyla_step_finished", "phyla_request_finished")


@dataclass(frozen=True)
class PluginInfo:
    """One line of `phyla plugins`."""

    name: str
    package: str
    distribution: str
    version: str
    hooks: tuple[str, ...] = ()
    state: PluginState = "loaded"
    reason: str = ""
    """Why it isn't loaded."""


class PluginManager:
    """Starts with nothing loaded; `discover` makes one with everything that is installed."""

    def __init__(self) -> None:
        self._pluggy = pluggy.PluginManager(hookspecs.PROJECT)
        self._pluggy.add_hookspecs(hookspecs)
        self._infos: dict[str, PluginInfo] = {}
        self._events: EventDelivery | None = None

    def register(self, name: str, plugin: object, *, distribution: str = "", version: str = "") -> None:
        """Check a plugin and load it.

        Args:
            name: what users call it.
            plugin: its package, or any object with `phyla_api` and hook implementations.
            distribution: who ships it.
            version: the distribution's.

        Raises:
            PluginApiError: its `phyla_api` is missing or another version's.
            PluginError: it implements a hook that doesn't exist, asks for arguments a hook doesn't have, wraps other
                plugins' hooks, or has the name of a plugin that is loaded.
        """
        if name in self._infos and self._infos[name].state == "loaded":
            raise PluginError(name, "a plugin of that name is loaded already.")
        _check_api(name, plugin)
        hooks = tuple(self._hooks_of(name, plugin))
        try:
            self._pluggy.register(plugin, name)
            self._pluggy.check_pending()
        except (pluggy.PluginValidationError, ValueError) as error:
            raise PluginError(name, f"its hooks don't fit: {error}") from error
        self._infos[name] = PluginInfo(name, _package_of(plugin), distribution, version, hooks)

    def note(self, info: PluginInfo) -> None:
        """Remember a plugin that isn't loaded, for `phyla plugins`."""
        self._infos[info.name] = info

    def plugins(self) -> tuple[PluginInfo, ...]:
        """Every plugin that was found, by name."""
        return tuple(self._infos[name] for name in sorted(self._infos))

    def settings_sections(self) -> tuple[type[PluginSettings], ...]:
        """Everybody's settings sections."""
        from phyla.settings import PluginSettings

        sections: list[type[PluginSettings]] = []
        for plugin, result in self._ask("phyla_settings"):
            for one in result if isinstance(result, tuple | list) else (result,):
                if not (isinstance(one, type) and issubclass(one, PluginSettings)):
                    raise _wrong(plugin, "phyla_settings", "a class derived from PluginSettings", one)
                sections.append(one)
        return tuple(sections)

    def add_commands(self, group: click.Group) -> None:
        """Let plugins add their commands."""
        for _ in self._ask("phyla_commands", group=group):
            pass

    def openers(self, settings: Settings) -> tuple[Declared[CheckpointOpener], ...]:
        """Ways to open a model reference."""
        from phyla.checkpoint import CheckpointOpener

        return self._collect("phyla_open_checkpoint", (CheckpointOpener,), settings=settings)

    def families(self, settings: Settings) -> tuple[Declared[Family], ...]:
        """Model families."""
        from phyla.model import Family

        return self._collect("phyla_families", (Family,), settings=settings)

    def output_parsers(self, settings: Settings) -> tuple[Declared[OutputParserFactory], ...]:
        """Dialects."""
        from phyla.output import OutputParserFactory

        return self._collect("phyla_output_parsers", (OutputParserFactory,), settings=settings)

    def kv_schemes(self, settings: Settings) -> tuple[Declared[KVScheme], ...]:
        """Ways to store keys and values."""
        from phyla.kv import KVScheme

        return self._collect("phyla_kv_schemes", (KVScheme,), settings=settings)

    def methods(self, settings: Settings) -> tuple[Declared[DraftMethod], ...]:
        """Draft methods."""
        from phyla.draft import DraftMethod

        return self._collect("phyla_methods", (DraftMethod,), settings=settings)

    def proposers(self, settings: Settings) -> tuple[Declared[ConstraintEngine | FillSource], ...]:
        """Constraint engines and fill sources."""
        from phyla.draft import ConstraintEngine
        from phyla.draft.fill import FillSource

        return self._collect("phyla_proposers", (ConstraintEngine, FillSource), settings=settings)

    def samplers(self, settings: Settings) -> tuple[Declared[NamedSampler], ...]:
        """Logits processors and samplers."""
        from phyla.sampling import NamedSampler

        return self._collect("phyla_samplers", (NamedSampler,), settings=settings)

    def cache_codecs(self, settings: Settings) -> tuple[Declared[CacheCodec], ...]:
        """How prefix entries become bytes."""
        from phyla.kv import CacheCodec

        return self._collect("phyla_cache_codecs", (CacheCodec,), settings=settings)

    def baselines(self, settings: Settings) -> tuple[Declared[Baseline], ...]:
        """Other programs to measure beside this one."""
        from phyla.baseline import Baseline

        return self._collect("phyla_baselines", (Baseline,), settings=settings)

    def plan_answers(self, candidates: Candidates, settings: Settings) -> tuple[Declared[PlanAnswer], ...]:
        """What plugins would choose instead of the defaults."""
        from phyla.plan import PlanAnswer

        answers: list[Declared[PlanAnswer]] = []
        for plugin, result in self._ask("phyla_plan", candidates=candidates, settings=settings):
            if result is not None:
                answers.append(Declared(plugin, _checked(plugin, "phyla_plan", (PlanAnswer,), result)))
        return tuple(answers)

    def report(self, plan: Plan) -> tuple[Declared[str], ...]:
        """Lines for `phyla explain`."""
        return self._collect("phyla_report", (str,), plan=plan)

    def routes(self, settings: Settings) -> tuple[Declared[Any], ...]:
        """Litestar handlers; only the server can check what they are."""
        return self._collect("phyla_routes", (object,), settings=settings)

    def engine_started(self, record: EngineStarted) -> None:
        """Tell listeners, off this thread."""
        self._delivery().post("phyla_engine_started", record)

    def step_finished(self, record: StepFinished) -> None:
        """Tell listeners, off this thread."""
        self._delivery().post("phyla_step_finished", record)

    def request_finished(self, record: RequestFinished) -> None:
        """Tell listeners, off this thread."""
        self._delivery().post("phyla_request_finished", record)

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Deliver the events that wait, then stop delivering. Safe to call twice."""
        if self._events is not None:
            self._events.close(timeout_seconds)

    def _delivery(self) -> EventDelivery:
        if self._events is None:
            self._events = EventDelivery({hook: [*self._listeners(hook)] for hook in EVENTS})
        return self._events

    def _listeners(self, hook: str) -> Iterator[Declared[Any]]:
        for implementation in self._implementations(hook):
            yield Declared(implementation.plugin_name, implementation.function)

    def _collect(self, hook: str, kinds: tuple[Any, ...], **arguments: Any) -> tuple[Declared[Any], ...]:
        found: list[Declared[Any]] = []
        for plugin, result in self._ask(hook, **arguments):
            if not isinstance(result, list | tuple):
                raise _wrong(plugin, hook, "a list", result)
            found.extend(Declared(plugin, _checked(plugin, hook, kinds, one)) for one in result)
        return tuple(found)

    def _ask(self, hook: str, **arguments: Any) -> Iterator[tuple[str, Any]]:
        """Each plugin's own answer. Asked one by one: pluggy's combined call wouldn't say who raised."""
        for implementation in self._implementations(hook):
            with plugin_border(implementation.plugin_name, f"answering {hook}"):
                answer = implementation.function(*(arguments[name] for name in implementation.argnames))
            yield implementation.plugin_name, answer

    def _implementations(self, hook: str) -> Sequence[pluggy.HookImpl]:
        caller: pluggy.HookCaller = getattr(self._pluggy.hook, hook)
        return sorted(caller.get_hookimpls(), key=lambda one: one.plugin_name)

    def _hooks_of(self, name: str, plugin: object) -> Iterator[str]:
        known = {hook for hook in vars(hookspecs) if hook.startswith("phyla_")}
        for attribute in dir(plugin):
            options = self._pluggy.parse_hookimpl_opts(plugin, attribute)
            if options is None:
                continue
            if attribute not in known:
                raise PluginError(name, str(UnknownName("hook", attribute, known)))
            if options["wrapper"] or options["hookwrapper"] or inspect.isgeneratorfunction(getattr(plugin, attribute)):
                raise PluginError(
                    name, f"its {attribute} wraps other plugins' answers; hooks here only give their own."
                )
            yield attribute


def _check_api(name: str, plugin: object) -> None:
    declared = getattr(plugin, "phyla_api", None)
    if declared != hookspecs.API_VERSION:
        said = "doesn't say which" if declared is None else f"speaks version {declared!r} of the"
        raise PluginApiError(
            name,
            f"{_package_of(plugin)} {said} hook API; this is version {hookspecs.API_VERSION}. Put "
            f"`phyla_api = {hookspecs.API_VERSION}` in the package if it fits, or run with --disable {name}.",
        )


def _package_of(plugin: object) -> str:
    return plugin.__name__ if inspect.ismodule(plugin) else type(plugin).__module__


def _checked(plugin: str, hook: str, kinds: tuple[type[T], ...], value: Any) -> T:
    if not isinstance(value, kinds):
        raise _wrong(plugin, hook, " or ".join(kind.__name__ for kind in kinds), value)
    return value


def _wrong(plugin: str, hook: str, expected: str, value: object) -> PluginError:
    return PluginError(plugin, f"its {hook} gave {value!r:.80} ({type(value).__name__}) where {expected} is expected.")
