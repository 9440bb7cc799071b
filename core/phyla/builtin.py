"""What core itself declares, through the hooks that every plugin uses: its settings, plain storage, its openers."""

from __future__ import annotations

from phyla.hookspecs import hookimpl
from phyla.plugins.settings import PluginsSettings
from phyla.settings import PluginSettings

phyla_api = 1


@hookimpl
def phyla_settings() -> tuple[type[PluginSettings], ...]:
    return (PluginsSettings,)
