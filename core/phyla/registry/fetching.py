"""What a name stands for, fetched if it isn't here."""

from __future__ import annotations

from collections.abc import Callable

from phyla.registry.hub import ensure_local
from phyla.registry.settings import ModelsSettings
from phyla.registry.starter import STARTER_NAME, fetch_starter


def fetched(name: str, settings: ModelsSettings, say: Callable[[str], None]) -> str:
    """The starter's file for `starter`, else the name as it is; a hub id is on this machine afterwards.

    Raises:
        CheckpointError: downloads are off, or one failed.
    """
    if name == STARTER_NAME:
        return str(fetch_starter(settings, say))
    ensure_local(name, settings)
    return name
