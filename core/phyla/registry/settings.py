"""The `[models]` section: which model, and where models are."""

from __future__ import annotations

from phyla.settings import PluginSettings, setting


class ModelsSettings(PluginSettings, section="models"):
    """Which model a command is about, and where models are kept on this machine."""

    model: str | None = setting(None, flag="--model", metavar="PATH|ORG/NAME|QUERY")
    """Model to use: a folder, a GGUF file, a hub id, or part of the name of a local one. Wins over a positional model
    and over `--query`."""

    query: str | None = setting(None, flag="--query", metavar="TEXT")
    """Part of the name or type of a model on this machine; used when no model is named otherwise."""

    folder: str = setting("~/.cache/phyla/models", flag="--models-folder", metavar="PATH")
    """Where the starter is kept, and other GGUF files and model folders may be."""

    hub_cache: str | None = setting(None, flag="--hub-cache", metavar="PATH")
    """The hub's cache of downloads; by default the one that HF_HUB_CACHE or HF_HOME says, else the hub's own."""

    offline: bool = setting(False, flag="--offline")
    """Download nothing: neither models nor the starter."""
