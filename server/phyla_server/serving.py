"""What the routes share: the model, the settings, the way to the engine."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from phyla import Settings
from phyla.sampling.defaults import SamplingDefaults, merge_defaults
from phyla.sampling.settings import SamplingSettings

from phyla_server.generation import GenerationService
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
    owner: Owner = "serve"
    started_at: float = field(default_factory=time.time)
    """Unix seconds."""

    @property
    def settings(self) -> ServerSettings:
        return self.all_settings.section(ServerSettings)

    @cached_property
    def defaults(self) -> SamplingDefaults:
        return merge_defaults(self.all_settings.section(SamplingSettings), self.model.facts.sampling_defaults)
