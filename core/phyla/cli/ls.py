"""`phyla ls`: the models on this machine."""

from __future__ import annotations

import re

import rich_click as click

from phyla.cli.columns import columns
from phyla.cli.command import SettingsCommand
from phyla.cli.session import Session
from phyla.errors import UsageError
from phyla.registry import LocalModel, ModelsSettings, local_models
from phyla.settings import Settings

_SIZE = re.compile(r"^(?P<number>\d+(\.\d+)?)\s*(?P<unit>[KMGT]?i?B)$", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def _list_models(
    session: Session, settings: Settings, query: str | None, max_size: str | None, all_revisions: bool
) -> int:
    limit = parse_size(max_size) if max_size is not None else None
    models = [
        model
        for model in local_models(settings.section(ModelsSettings))
        if (all_revisions or model.is_current)
        and _matches(model, query)
        and (limit is None or model.num_bytes <= limit)
    ]
    if not models:
        click.echo("No model here. `phyla get org/name` downloads one; `phyla get starter` the smallest.", err=True)
        return 0
    rows = [("MODEL", "TYPE", "SIZE", "NOTES"), *(_row(model, all_revisions) for model in models)]
    click.echo(columns(rows))
    return 0


def parse_size(text: str) -> int:
    """Bytes of `10GB`, `800MB`, `8GiB`.

    Raises:
        UsageError: anything else.
    """
    match = _SIZE.match(text.strip())
    if match is None:
        raise UsageError(f"'{text}' isn't a size: write 10GB, 800MB or 8GiB.")
    unit = match["unit"].upper()
    base = 1024 if "I" in unit else 1000
    return int(float(match["number"]) * base ** _POWERS[unit.removesuffix("B").removesuffix("I")])


def _matches(model: LocalModel, query: str | None) -> bool:
    return query is None or query.lower() in model.model_id.lower() or query.lower() in model.model_type.lower()


def _row(model: LocalModel, with_revision: bool) -> tuple[str, str, str, str]:
    notes = [
        *(["drafter"] if model.is_drafter else []),
        *([] if model.is_complete else ["incomplete: phyla get resumes"]),
        *([model.revision[:12]] if with_revision and model.revision else []),
        *([] if model.is_current else ["superseded"]),
    ]
    return model.model_id, model.model_type or "?", f"{model.num_bytes / 10**9:.2f} GB", ", ".join(notes)


ls = SettingsCommand(
    "ls",
    _list_models,
    arguments=[
        click.RichArgument(["query"], required=False, metavar="[QUERY]"),
        click.RichOption(["--max-size"], metavar="SIZE", help="Leave out larger ones: 10GB, 800MB, 8GiB."),
        click.RichOption(["--all-revisions"], is_flag=True, help="Also list snapshots that newer ones replaced."),
    ],
    help="List the models on this machine, one line each.\n\nQUERY is part of a name or a model type.",
)
