"""Plugins: found by entry point, checked before they are believed, called through one typed method per hook."""

from phyla.plugins.declared import Declared, by_name, pick, plugin_border
from phyla.plugins.discovery import ENTRY_POINT_GROUP, discover
from phyla.plugins.manager import PluginInfo, PluginManager, PluginState

__all__ = [
    "ENTRY_POINT_GROUP",
    "Declared",
    "PluginInfo",
    "PluginManager",
    "PluginState",
    "by_name",
    "discover",
    "pick",
    "plugin_border",
]
