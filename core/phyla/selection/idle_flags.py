"""Flags about drafts where nothing drafts, or where another method does."""

from __future__ import annotations

from collections.abc import Iterator

from phyla.draft.settings import DraftSettings
from phyla.errors import RefusedCombination
from phyla.selection.methods import ChosenMethod, Methods
from phyla.selection.settings import SelectionSettings
from phyla.settings import PluginSettings, Settings, declared_fields


def check_draft_flags(settings: Settings, chosen: ChosenMethod, methods: Methods) -> tuple[str, ...]:
    """Refuse flags about drafts that would do nothing, unless drafts were switched off.

    Variables and keys of the file are for whatever may draft one day, and pass.

    Returns:
        One line for each flag that does nothing because drafts were switched off, or the model's own drafter doesn't
        fit.

    Raises:
        RefusedCombination: a flag, where nobody said what should draft, or which is about another method.
    """
    idle: list[tuple[str, str]] = []
    if chosen.method is None:
        shared = [*_given(settings, SelectionSettings, ("num_draft_tokens",)), *_given(settings, DraftSettings)]
        idle = [(flag, "name a draft method with --method, or a drafter with --draft-model") for flag in shared]
    for name, method in sorted(methods.items()):
        if method.value.settings is not None and name != chosen.choice.name:
            idle.extend((flag, f"take --method {name}") for flag in _given(settings, method.value.settings))
    if not idle:
        return ()
    # Who switched drafts off, or was told why there are none, hasn't forgotten to ask for them.
    if chosen.method is None and (chosen.choice.chosen_by != "auto" or chosen.notices):
        return tuple(f"{flag} has no effect: nothing drafts." for flag, _ in idle)
    flag, remedy = idle[0]
    drafts = "nothing drafts" if chosen.method is None else f"'{chosen.choice.name}' drafts"
    raise RefusedCombination(f"{flag} would do nothing, since {drafts}: {remedy}, or leave {flag} away.")


def _given(settings: Settings, section: type[PluginSettings], names: tuple[str, ...] = ()) -> Iterator[str]:
    """Flags of a section that were given, as they were spelt; all fields or these."""
    for one in declared_fields(section):
        origin = settings.origin(section, one.name)
        if origin.by == "flag" and (not names or one.name in names):
            yield origin.where
