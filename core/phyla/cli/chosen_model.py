"""Which model a command runs, from its argument, the settings and what is on this machine."""

from __future__ import annotations

import os

import rich_click as click

from phyla.cli.session import Session
from phyla.errors import CheckpointNotFound
from phyla.model.family import Claim
from phyla.registry import STARTER_NAME, LocalModel, ModelsSettings, fetch_starter, fetched, resolve_model
from phyla.registry.starter import starter_path
from phyla.selection.settings import SelectionSettings
from phyla.settings import Settings


def chosen_model(session: Session, settings: Settings, positional: str | None, *, may_fetch: bool = True) -> str:
    """The reference to open; says on stderr what was chosen where nobody named it.

    Args:
        session: whose families say what can be served.
        settings: flags, and where models are.
        positional: the command's own argument.
        may_fetch: download a hub id that isn't here, be it the drafter's, or the starter when no model is named and
            none is here.

    Raises:
        CheckpointNotFound: a query that nothing matches, or nothing here and nothing may be fetched.
        UsageError: a query that several match, or no local model fits.
        CheckpointError: a download failed.
    """
    models = settings.section(ModelsSettings)
    reference = _model(session, settings, models, positional, may_fetch)
    drafter = settings.section(SelectionSettings).draft_model
    if may_fetch and drafter is not None:
        fetched(drafter, models, _say)
    return reference


def _model(
    session: Session, settings: Settings, models: ModelsSettings, positional: str | None, may_fetch: bool
) -> str:
    families = [one.value for one in session.manager.families(settings)]

    def is_servable(model: LocalModel) -> bool:
        return model.source == "gguf" or any(family.claim(model.config) > Claim.NONE for family in families)

    if (models.model or positional) == STARTER_NAME:
        return _starter(models, may_fetch)
    resolved = resolve_model(models, positional, _memory_bytes(), is_servable)
    if resolved is not None:
        if not any((models.model, positional, models.query)):
            _say(f"Model: {resolved.reason}")
        return fetched(resolved.reference, models, _say) if may_fetch else resolved.reference
    return _starter(models, may_fetch)


def _starter(models: ModelsSettings, may_fetch: bool) -> str:
    if not may_fetch and starter_path(models) is None:
        raise CheckpointNotFound("There is no model on this machine. Name one, or `phyla get starter`.")
    return str(fetch_starter(models, _say))


def _say(line: str) -> None:
    click.echo(line, err=True)


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
