"""What the routes share: the model, the settings, the way to the engine."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Literal

from phyla.output import OutputParser, ParserContext
from phyla.request import Rendered
from phyla.tokenizer import Tokenizer

from phyla_server.generation import GenerationService
from phyla_server.preparation import Preparation
from phyla_server.sampling_fields import SamplingDefaults
from phyla_server.served import ServedModel
from phyla_server.settings import ServerSettings

Owner = Literal["serve", "embedded"]


@dataclass(frozen=True)
class Serving:
    """One running server. Nothing in it changes after start but the services' own state."""

    model: ServedModel
    settings: ServerSettings
    generation: GenerationService
    preparation: Preparation
    owner: Owner = "serve"
    started_at: float = field(default_factory=time.time)
    """Unix seconds."""

    @property
    def defaults(self) -> SamplingDefaults:
        one = self.settings
        return SamplingDefaults(one.temperature, one.top_p, one.top_k, self.model.facts.sampling_defaults)

    def parser_for(self, rendered: Rendered) -> OutputParser:
        """A fresh parser for one sample that follows this prompt."""
        start, end = self.model.reasoning or (None, None)
        context = ParserContext(
            tools=rendered.tools,
            starts_in_reasoning=rendered.starts_in_reasoning,
            reasoning_start=start,
            reasoning_end=end,
        )
        return self.model.parser.create(context)


def xtc_special_ids(tokenizer: Tokenizer, eos_ids: tuple[int, ...]) -> tuple[int, ...]:
    """Ids that XTC never removes: end of sequence, and the newline where it is one token."""
    newline = tokenizer.encode("\n")
    return tuple(sorted({*eos_ids, *tokenizer.eos_ids, *(newline if len(newline) == 1 else ())}))
