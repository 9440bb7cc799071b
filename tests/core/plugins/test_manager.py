"""Registration checks, and what comes back through each hook. Every manager here starts with nothing loaded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import click
import pytest
from phyla import hookspecs
from phyla.backend import BackendFacts
from phyla.checkpoint import CheckpointOpener
from phyla.draft import ConstraintEngine, DraftMethod
from phyla.draft.fill import FillSource
from phyla.errors import PluginApiError, PluginError, SettingsError
from phyla.hookspecs import hookimpl
from phyla.kv import SUPPORTED, CacheCodec, KVScheme
from phyla.model import Claim
from phyla.output import OutputParserFactory
from phyla.plan import Candidates, PlanAnswer
from phyla.plugins import Declared, PluginManager, by_name, pick
from phyla.sampling import NamedSampler
from phyla.settings import PluginSettings, Settings

SETTINGS = Settings()
OPENER = CheckpointOpener("shelf", rank=lambda reference: 0, open=lambda reference: pytest.fail("not opened here"))
SCHEME = KVScheme(
    "boxes",
    frozenset({"full"}),
    supports=lambda layer, backend: SUPPORTED,
    create=lambda layer, backend, dtype: pytest.fail("not created here"),
    bytes_per_token=lambda layer, dtype: 1.0,
)
METHOD = DraftMethod("guess", create=lambda target, drafter: pytest.fail("not created here"))
DIALECT = OutputParserFactory("tongue", create=lambda context: pytest.fail("not created here"))
ENGINE = ConstraintEngine(
    "rules",
    supports=lambda spec: SUPPORTED,
    compile=lambda spec, tokenizer, eos: pytest.fail("not compiled here"),
)
FILL = FillSource("echo", asserted=False, open=lambda request: None)
SAMPLER = NamedSampler("curve", "processor", create=lambda request: lambda history, logits: logits)
CODEC = CacheCodec("plain", 1, encode=lambda entry: b"", decode=lambda data, identity: pytest.fail("not decoded here"))
RIVAL = SimpleNamespace(name="rival", versions=dict, open=lambda folder: pytest.fail("not opened here"))
ANSWER = PlanAnswer({"kv_scheme": "boxes"}, "because")


class Wardrobe:
    """A family."""

    name = "wardrobe"

    def claim(self, config: Any) -> Claim:
        return Claim.NONE

    def describe(self, checkpoint: Any) -> Any:
        return None

    def bind(self, checkpoint: Any, facts: Any, options: Any) -> Any:
        return None


class WardrobeSettings(PluginSettings):
    """A section."""

    doors: int = 2


class Everything:
    """Implements every hook that returns something."""

    phyla_api = 1

    @hookimpl
    def phyla_settings(self) -> type[PluginSettings]:
        return WardrobeSettings

    @hookimpl
    def phyla_commands(self, group: click.Group) -> None:
        group.add_command(click.Command("dust"))

    @hookimpl
    def phyla_open_checkpoint(self, settings: Settings) -> list[CheckpointOpener]:
        return [OPENER]

    @hookimpl
    def phyla_families(self) -> list[Any]:
        return [Wardrobe()]

    @hookimpl
    def phyla_output_parsers(self, settings: Settings) -> list[OutputParserFactory]:
        return [DIALECT]

    @hookimpl
    def phyla_kv_schemes(self, settings: Settings) -> list[KVScheme]:
        return [SCHEME]

    @hookimpl
    def phyla_methods(self, settings: Settings) -> list[DraftMethod]:
        return [METHOD]

    @hookimpl
    def phyla_proposers(self, settings: Settings) -> list[Any]:
        return [ENGINE, FILL]

    @hookimpl
    def phyla_samplers(self, settings: Settings) -> list[NamedSampler]:
        return [SAMPLER]

    @hookimpl
    def phyla_cache_codecs(self, settings: Settings) -> list[CacheCodec]:
        return [CODEC]

    @hookimpl
    def phyla_baselines(self) -> list[Any]:
        return [RIVAL]

    @hookimpl
    def phyla_plan(self, candidates: Candidates, settings: Settings) -> PlanAnswer:
        return ANSWER

    @hookimpl
    def phyla_report(self, plan: Any) -> list[str]:
        return ["two doors"]

    @hookimpl
    def phyla_routes(self, settings: Settings) -> list[Any]:
        return ["a handler"]


@pytest.fixture
def manager() -> PluginManager:
    made = PluginManager()
    made.register("wardrobe", Everything(), distribution="furniture", version="1.2")
    return made


@pytest.fixture
def candidates() -> Candidates:
    backend = BackendFacts("cpu", "test", "0", 1, 1)
    return Candidates(facts=SimpleNamespace(), backend=backend, defaults={}, names={})  # type: ignore[arg-type]


def answering(hook: str, answer: Any) -> PluginManager:
    """A manager whose one plugin answers a hook with that."""

    class Answering:
        phyla_api = 1

    setattr(Answering, hook, staticmethod(hookimpl(lambda: answer)))
    made = PluginManager()
    made.register("odd", Answering())
    return made


def test_a_manager_starts_with_nothing_loaded() -> None:
    assert PluginManager().plugins() == ()
    assert PluginManager().families(SETTINGS) == ()


def test_each_hook_gives_what_was_declared_and_who_declared_it(manager: PluginManager) -> None:
    assert manager.settings_sections() == (WardrobeSettings,)
    assert manager.openers(SETTINGS) == (Declared("wardrobe", OPENER),)
    assert [one.value.name for one in manager.families(SETTINGS)] == ["wardrobe"]
    assert manager.output_parsers(SETTINGS) == (Declared("wardrobe", DIALECT),)
    assert manager.kv_schemes(SETTINGS) == (Declared("wardrobe", SCHEME),)
    assert manager.methods(SETTINGS) == (Declared("wardrobe", METHOD),)
    assert manager.proposers(SETTINGS) == (Declared("wardrobe", ENGINE), Declared("wardrobe", FILL))
    assert manager.samplers(SETTINGS) == (Declared("wardrobe", SAMPLER),)
    assert manager.cache_codecs(SETTINGS) == (Declared("wardrobe", CODEC),)
    assert manager.baselines(SETTINGS) == (Declared("wardrobe", RIVAL),)
    assert manager.routes(SETTINGS) == (Declared("wardrobe", "a handler"),)


def test_plan_and_report_are_asked(manager: PluginManager, candidates: Candidates) -> None:
    assert manager.plan_answers(candidates, SETTINGS) == (Declared("wardrobe", ANSWER),)
    assert manager.report(SimpleNamespace()) == (Declared("wardrobe", "two doors"),)  # type: ignore[arg-type]


def test_commands_are_added_to_the_group(manager: PluginManager) -> None:
    group = click.Group("phyla")
    manager.add_commands(group)
    assert list(group.commands) == ["dust"]


def test_a_loaded_plugin_is_listed_with_its_hooks(manager: PluginManager) -> None:
    [info] = manager.plugins()
    assert (info.name, info.distribution, info.version, info.state) == ("wardrobe", "furniture", "1.2", "loaded")
    assert "phyla_families" in info.hooks


def test_plugins_are_asked_in_the_order_of_their_names() -> None:
    manager = PluginManager()
    for name in ("walnut", "birch", "oak"):
        manager.register(name, Everything())
    assert [one.plugin for one in manager.kv_schemes(SETTINGS)] == ["birch", "oak", "walnut"]


@pytest.mark.parametrize(
    ("hook", "ask"),
    [
        ("phyla_open_checkpoint", PluginManager.openers),
        ("phyla_families", PluginManager.families),
        ("phyla_output_parsers", PluginManager.output_parsers),
        ("phyla_kv_schemes", PluginManager.kv_schemes),
        ("phyla_methods", PluginManager.methods),
        ("phyla_proposers", PluginManager.proposers),
        ("phyla_samplers", PluginManager.samplers),
        ("phyla_cache_codecs", PluginManager.cache_codecs),
        ("phyla_baselines", PluginManager.baselines),
    ],
)
def test_an_answer_of_the_wrong_type_names_the_plugin_and_the_hook(hook: str, ask: Any) -> None:
    with pytest.raises(PluginError, match=f"Plugin 'odd': its {hook} gave 'nonsense'"):
        ask(answering(hook, ["nonsense"]), SETTINGS)
    with pytest.raises(PluginError, match=f"Plugin 'odd': its {hook} gave None .* a list"):
        ask(answering(hook, None), SETTINGS)


def test_a_section_that_is_no_settings_class_names_the_plugin() -> None:
    with pytest.raises(PluginError, match="'odd'.*derived from PluginSettings"):
        answering("phyla_settings", dict).settings_sections()


def test_several_sections_may_be_given() -> None:
    assert answering("phyla_settings", (WardrobeSettings,)).settings_sections() == (WardrobeSettings,)


def test_a_plan_answer_of_the_wrong_type_names_the_plugin(candidates: Candidates) -> None:
    with pytest.raises(PluginError, match="'odd': its phyla_plan gave 'boxes'"):
        answering("phyla_plan", "boxes").plan_answers(candidates, SETTINGS)


def test_a_plugin_that_raises_at_declaration_is_named() -> None:
    class Raising:
        phyla_api = 1

        @hookimpl
        def phyla_families(self) -> list[Any]:
            raise ZeroDivisionError("by nought")

    manager = PluginManager()
    manager.register("broken", Raising())
    with pytest.raises(PluginError, match="'broken': it raised ZeroDivisionError.*phyla_families.*--disable broken"):
        manager.families(SETTINGS)


def test_an_error_that_phyla_knows_keeps_its_class_and_gains_the_plugin() -> None:
    class Refusing:
        phyla_api = 1

        @hookimpl
        def phyla_methods(self) -> list[Any]:
            raise SettingsError("depth is 0")

    manager = PluginManager()
    manager.register("strict", Refusing())
    with pytest.raises(SettingsError, match="depth is 0") as caught:
        manager.methods(SETTINGS)
    assert caught.value.__notes__ == ["Raised by plugin 'strict' while answering phyla_methods."]


@pytest.mark.parametrize(("declared", "said"), [(None, "doesn't say which"), (2, "version 2")])
def test_a_plugin_for_another_hook_api_is_refused(declared: int | None, said: str) -> None:
    with pytest.raises(PluginApiError, match=f"'old'.*{said}.*version {hookspecs.API_VERSION}"):
        PluginManager().register("old", SimpleNamespace(phyla_api=declared))


def test_a_hook_that_does_not_exist_names_the_near_match() -> None:
    class Misspelt:
        phyla_api = 1

        @hookimpl
        def phyla_familys(self) -> list[Any]:
            return []

    with pytest.raises(PluginError, match=r"'typo'.*hook 'phyla_familys'\. Did you mean 'phyla_families'"):
        PluginManager().register("typo", Misspelt())


def test_a_hook_that_asks_for_more_than_there_is_names_the_plugin() -> None:
    class Greedy:
        phyla_api = 1

        @hookimpl
        def phyla_families(self, settings: Settings, moon: int) -> list[Any]:
            return []

    with pytest.raises(PluginError, match="'greedy': its hooks don't fit"):
        PluginManager().register("greedy", Greedy())


def test_a_hook_wrapper_is_refused() -> None:
    class Wrapping:
        phyla_api = 1

        @hookimpl(wrapper=True)
        def phyla_families(self) -> Any:
            return (yield)

    with pytest.raises(PluginError, match="'wrap'.*wraps other plugins"):
        PluginManager().register("wrap", Wrapping())


def test_a_name_can_be_registered_once(manager: PluginManager) -> None:
    with pytest.raises(PluginError, match="loaded already"):
        manager.register("wardrobe", Everything())


def test_two_plugins_with_one_declaration_are_both_named() -> None:
    with pytest.raises(PluginError, match="'oak': it declares the KV scheme 'boxes', and so does plugin 'birch'"):
        by_name([Declared("birch", SCHEME), Declared("oak", SCHEME)], "KV scheme")


def test_a_name_nobody_declares_lists_what_exists() -> None:
    with pytest.raises(Exception, match=r"no KV scheme 'box'\. Did you mean 'boxes'\? Known: boxes"):
        pick(by_name([Declared("birch", SCHEME)], "KV scheme"), "KV scheme", "box")
