"""Which model a command means: `--model`, then a positional one, then `--query`, then the best that fits."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from phyla.errors import CheckpointNotFound, UsageError
from phyla.registry.local_models import LocalModel, scan_models
from phyla.registry.places import hub_cache_folder, models_folder
from phyla.registry.settings import ModelsSettings
from phyla.registry.starter import STARTER_NAME, starter_path

FAVOURITE = "gemma-4-e4b"
COMFORTABLE_SHARE = 0.6
LARGEST_SHARE = 0.75
"""Shares of memory that weights may take: what auto prefers, and the most it picks at all."""

_HUB_ID = re.compile(r"^[\w.-]+/[\w.-]+(@[\w./-]+)?$")


@dataclass(frozen=True)
class Resolved:
    """What to open, and why that."""

    reference: str
    reason: str


def resolve_model(
    settings: ModelsSettings,
    positional: str | None,
    memory_bytes: int,
    is_servable: Callable[[LocalModel], bool] = lambda model: True,
) -> Resolved | None:
    """The model that is meant, or None when none is named and none is here: then the starter is.

    Args:
        settings: flags, and where models are.
        positional: a path, a hub id or a query.
        memory_bytes: memory that weights share with everything else.
        is_servable: whether some family takes it; asked for the automatic choice only.

    Raises:
        CheckpointNotFound: a query that nothing matches.
        UsageError: a query that several match.
    """
    for named, how in ((settings.model, "--model"), (positional, "named")):
        if named is not None:
            return _named(named, how, settings)
    models = local_models(settings)
    if settings.query is not None:
        return Resolved(str(find_model(settings.query, models).path), f"matches --query {settings.query}")
    return _best(models, memory_bytes, is_servable)


def local_models(settings: ModelsSettings) -> list[LocalModel]:
    """What is on this machine."""
    return scan_models(hub_cache_folder(settings), models_folder(settings))


def local_reference(name: str, settings: ModelsSettings) -> str:
    """What to open for a name that may be a drafter's: `starter`, a path, a hub id, or part of a local model's name.

    Raises:
        CheckpointNotFound: nothing matches, or the starter isn't here; nothing is fetched.
        UsageError: several match.
    """
    if name == STARTER_NAME:
        path = starter_path(settings)
        if path is None:
            raise CheckpointNotFound("The starter isn't on this machine. `phyla get starter` fetches it.")
        return str(path)
    if is_path(name) or is_hub_id(name):
        return name
    return str(find_model(name, local_models(settings), with_drafters=True).path)


def find_model(query: str, models: Sequence[LocalModel], *, with_drafters: bool = False) -> LocalModel:
    """The one model whose id or type contains the query, whatever the case; an exact id wins over parts.

    Args:
        query: what it is called.
        models: among these.
        with_drafters: count what can't be served itself.

    Raises:
        CheckpointNotFound: nothing matches.
        UsageError: several do; all are listed.
    """
    usable = [model for model in models if model.is_current and (with_drafters or not model.is_drafter)]
    wanted = query.lower()
    exact = [model for model in usable if model.model_id.lower() == wanted]
    matching = exact or [
        model for model in usable if wanted in model.model_id.lower() or wanted in model.model_type.lower()
    ]
    if not matching:
        raise CheckpointNotFound(
            f"No model on this machine matches '{query}'. `phyla ls` lists them; `phyla get org/name` downloads one."
        )
    if len(matching) > 1:
        listed = ", ".join(model.model_id for model in matching)
        raise UsageError(f"'{query}' matches {len(matching)} models: {listed}. Name one of them.")
    return matching[0]


def is_path(reference: str) -> bool:
    """Whether a reference can only mean a file or folder."""
    return reference.startswith(("/", ".", "~")) or reference.endswith(".gguf") or Path(reference).expanduser().exists()


def is_hub_id(reference: str) -> bool:
    """Whether a reference reads `org/name` or `org/name@revision`."""
    return _HUB_ID.match(reference) is not None


def _named(reference: str, how: str, settings: ModelsSettings) -> Resolved:
    if is_path(reference):
        return Resolved(reference, f"{how}: a path")
    if is_hub_id(reference):
        return Resolved(reference, f"{how}: a hub id")
    return Resolved(str(find_model(reference, local_models(settings)).path), f"{how}: matches a local model")


def _best(
    models: Sequence[LocalModel], memory_bytes: int, is_servable: Callable[[LocalModel], bool]
) -> Resolved | None:
    usable = [
        model
        for model in models
        if model.is_current and model.is_complete and not model.is_drafter and is_servable(model)
    ]
    fitting = [model for model in usable if model.num_bytes <= LARGEST_SHARE * memory_bytes]
    favourites = [model for model in fitting if FAVOURITE in model.model_id.lower()]
    comfortable = [model for model in fitting if model.num_bytes <= COMFORTABLE_SHARE * memory_bytes]
    for candidates, reason in (
        (favourites, "the recommended model, and it fits"),
        (comfortable, "the largest local model that leaves room"),
        (fitting, "the largest local model that fits at all"),
    ):
        if candidates:
            best = max(candidates, key=lambda model: (model.num_bytes, model.model_id))
            return Resolved(str(best.path), f"{best.model_id}: {reason}")
    if usable:
        smallest = min(usable, key=lambda model: model.num_bytes)
        raise UsageError(
            f"None of the {len(usable)} local models fits this machine's memory; the smallest is {smallest.model_id}. "
            "Name one to try it all the same."
        )
    return None
