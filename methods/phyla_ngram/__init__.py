"""Prompt-lookup drafting: propose what followed the same tokens the first time.

Needs no draft head, so it works with every family. Strong on edits and quoting, idle on free text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from phyla import DraftFacts, DraftMethod, PluginSettings, Settings, hookimpl

from phyla_ngram.settings import NgramSettings

if TYPE_CHECKING:
    from phyla import DraftProvider, LoadableDrafter, ModelBinding

phyla_api = 1

MAX_DRAFT_TOKENS = 10
"""A copied run is usually long, and looking it up costs nothing."""


@hookimpl
def phyla_settings() -> type[PluginSettings]:
    return NgramSettings


@hookimpl
def phyla_methods(settings: Settings) -> list[DraftMethod]:
    facts = DraftFacts(is_lookup=True, max_tokens=MAX_DRAFT_TOKENS)

    def create(target: ModelBinding, drafter: LoadableDrafter | None) -> DraftProvider:
        from phyla_ngram.provider import NgramProvider

        return NgramProvider(facts, settings.section(NgramSettings))

    return [
        DraftMethod(
            name="ngram",
            create=create,
            describe=lambda target, drafter: facts,
            settings=NgramSettings,
            description="proposes what followed the same tokens the first time; for edits and quoting",
        )
    ]
