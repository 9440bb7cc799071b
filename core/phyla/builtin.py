"""What core itself declares, through the hooks that every plugin uses: its settings, plain storage, its openers."""

from __future__ import annotations

from phyla.backend.settings import BackendSettings
from phyla.backend.strategy.settings import StrategySettings
from phyla.checkpoint import CheckpointOpener, folder_opener
from phyla.draft.grammar_settings import GrammarSettings
from phyla.draft.settings import DraftSettings
from phyla.engine.settings import EngineSettings
from phyla.engine.trace import TraceSettings
from phyla.hookspecs import hookimpl
from phyla.kv import KVScheme
from phyla.kv.prefix.settings import PrefixSettings
from phyla.plugins.settings import PluginsSettings
from phyla.registry.settings import ModelsSettings
from phyla.sampling.settings import SamplingSettings
from phyla.selection.settings import SelectionSettings
from phyla.settings import PluginSettings, Settings
from phyla.settings.log import LogSettings

phyla_api = 1


@hookimpl
def phyla_settings() -> tuple[type[PluginSettings], ...]:
    return (
        PluginsSettings,
        SelectionSettings,
        BackendSettings,
        StrategySettings,
        SamplingSettings,
        EngineSettings,
        PrefixSettings,
        DraftSettings,
        GrammarSettings,
        TraceSettings,
        LogSettings,
        ModelsSettings,
    )


@hookimpl
def phyla_kv_schemes() -> list[KVScheme]:
    from phyla.kv.plain import PLAIN

    return [PLAIN]


@hookimpl
def phyla_open_checkpoint(settings: Settings) -> list[CheckpointOpener]:
    from phyla.registry.hub import hub_opener

    return [folder_opener(), hub_opener(settings.section(ModelsSettings))]
