"""`phyla get`: download a model into the hub's cache, or the starter into Phyla's own folder."""

from __future__ import annotations

import rich_click as click

from phyla.cli.command import SettingsCommand
from phyla.cli.session import Session
from phyla.errors import UsageError
from phyla.registry import STARTER_NAME, ModelsSettings, fetch_starter, find_model, local_models
from phyla.registry.hub import DEFAULT_REVISION, MODEL_FILES, download, split_reference, verify_snapshot
from phyla.registry.resolving import is_hub_id
from phyla.settings import Settings


def _get(session: Session, settings: Settings, model: str, revision: str | None, include: tuple[str, ...]) -> int:
    models = settings.section(ModelsSettings)
    if model == STARTER_NAME:
        path = fetch_starter(models, lambda line: click.echo(line, err=True))
        click.echo(path.stem)
        return 0
    repository, own_revision = split_reference(_repository(model, models))
    snapshot = download(repository, models, revision or own_revision, include or MODEL_FILES)
    num_compared = verify_snapshot(snapshot, repository)
    click.echo(f"{repository} at {snapshot.name[:12]}: complete, {num_compared} files compared with their digests.")
    return 0


def _repository(model: str, settings: ModelsSettings) -> str:
    """The hub id that is meant: itself, or of the one local model that it's part of."""
    if is_hub_id(model):
        return model
    found = find_model(model, local_models(settings))
    if found.source != "hub":
        raise UsageError(f"{found.model_id} didn't come from the hub, so there is nothing to download. Give org/name.")
    return found.model_id


get = SettingsCommand(
    "get",
    _get,
    arguments=[
        click.RichArgument(["model"], metavar="MODEL"),
        click.RichOption(["--revision"], metavar="NAME", help=f"Branch, tag or commit. [default: {DEFAULT_REVISION}]"),
        click.RichOption(
            ["--include"], multiple=True, metavar="PATTERN", help="Fetch these files instead of the usual."
        ),
    ],
    help="Download a model, going on where an earlier attempt ended, and check its large files.\n\n"
    "MODEL is a hub id (org/name), part of the name of one that is here, or 'starter'.",
)
