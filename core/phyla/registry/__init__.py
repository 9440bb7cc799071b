"""Models on this machine and how more get here: scanning, queries, the hub, the starter."""

from phyla.registry.fetching import fetched
from phyla.registry.local_models import LocalModel, scan_models
from phyla.registry.resolving import Resolved, find_model, local_models, local_reference, resolve_model
from phyla.registry.settings import ModelsSettings
from phyla.registry.starter import STARTER_NAME, fetch_starter

__all__ = [
    "STARTER_NAME",
    "LocalModel",
    "ModelsSettings",
    "Resolved",
    "fetch_starter",
    "fetched",
    "find_model",
    "local_models",
    "local_reference",
    "resolve_model",
    "scan_models",
]
