"""Which plugins are loaded: read before any of them is."""

from __future__ import annotations

from phyla.settings import PluginSettings, setting


class PluginsSettings(PluginSettings, section="plugins"):
    """Which installed plugins are loaded. Read before anything else."""

    disable: tuple[str, ...] = setting((), flag="--disable", metavar="NAME")
    """Plugins that are not even imported; `phyla plugins` lists the names. May be given several times."""

    no_plugins: bool = setting(False, flag="--no-plugins")
    """Load no plugin at all: core's own declarations only."""
