"""What the routes share: the model, the settings, the way to the engine."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from phyla import Settings
from phyla.draft.grammar_settings import GrammarSettings
from phyla.sampling.defaults import SamplingDefaults, merge_defaults
from phyla.sampling.settings import SamplingSettings

from phyla_server.enforcing import Enforcing
from phyla_server.generation import GenerationService
from phyla_server.local_library import ListsModels, NoOtherModels
from phyla_server.preparation import Preparation
from phyla_server.served import ServedModel
from phyla_server.settings import ServerSettings

Owner = Literal["serve", "embedded"]


@dataclass(frozen=True)
class Serving:
    """One running server. Nothing in it changes after start but the services' own state."""

    model: ServedModel
    all_settings: Settings
    generation: GenerationService
    preparation: Preparation
    enforcing: Enforcing
    owner: Owner = "serve"
    others: ListsModels = field(default_factory=NoOtherModels)
    """Models on this machine that aren't served."""

    started_at: float = field(default_factory=time.time)
    """Unix seconds."""

    @property
    def settings(self) -> ServerSettings:
        return self.all_settings.section(ServerSettings)

    @property
    def warns_of_fallback(self) -> bool:
        """Whether a constraint that can't be enforced becomes a wish."""
        is_off = not self.all_settings.section(GrammarSettings).enabled
        return is_off or self.settings.structured_fallback == "warn"

    @cached_property
    def defaults(self) -> SamplingDefaults:
        return merge_defaults(self.all_settings.section(SamplingSettings), self.model.facts.sampling_defaults)
