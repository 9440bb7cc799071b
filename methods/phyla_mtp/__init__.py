"""Multi-token prediction for Qwen3.5: one more layer, trained with the model, that guesses a token further.

It comes as an artifact of its own, as `mtp/` inside the model's folder, or among the model's own tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from phyla import DraftMethod, PluginSettings, Settings, hookimpl

from phyla_mtp.artifact import bundled, draft_facts, is_draft_head, support
from phyla_mtp.settings import MtpSettings

if TYPE_CHECKING:
    from phyla import Drafter, DraftFacts, DraftProvider, DraftTarget, LoadableDrafter, ModelBinding

phyla_api = 1


@hookimpl
def phyla_settings() -> type[PluginSettings]:
    return MtpSettings


@hookimpl
def phyla_methods(settings: Settings) -> list[DraftMethod]:
    depth = settings.section(MtpSettings).depth

    def describe(target: DraftTarget, drafter: Drafter | None) -> DraftFacts:
        assert drafter is not None, "it needs a drafter"
        return draft_facts(target.facts, drafter.checkpoint, depth)

    def create(target: ModelBinding, drafter: LoadableDrafter | None) -> DraftProvider:
        from phyla_mtp.head import load_head
        from phyla_mtp.provider import MtpProvider

        assert drafter is not None, "it needs a drafter"
        facts = draft_facts(target.facts, drafter.checkpoint, depth)
        return MtpProvider(facts, load_head(drafter.checkpoint, drafter.options), target, drafter.new_state)

    return [
        DraftMethod(
            name="mtp",
            create=create,
            detect=lambda drafter: is_draft_head(drafter.config),
            bundled=bundled,
            describe=describe,
            supports=support,
            needs_drafter=True,
            settings=MtpSettings,
            description="the draft head that Qwen3.5 models are trained with",
        )
    ]
