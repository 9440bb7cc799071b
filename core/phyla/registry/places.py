"""Where models are kept."""

from __future__ import annotations

from pathlib import Path

from phyla.registry.settings import ModelsSettings


def models_folder(settings: ModelsSettings) -> Path:
    """Phyla's own folder of models; may not exist yet."""
    return Path(settings.folder).expanduser()


def hub_cache_folder(settings: ModelsSettings) -> Path:
    """The hub's cache; may not exist yet. Without a setting the hub's own library says where, variables included."""
    if settings.hub_cache is not None:
        return Path(settings.hub_cache).expanduser()
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)
