"""The model that is served, as far as HTTP needs to know it."""

from __future__ import annotations

from dataclasses import dataclass

from phyla.engine import EngineFront
from phyla.model.facts import ModelFacts
from phyla.output import OutputParserFactory
from phyla.tokenizer import Tokenizer
from phyla.tokenizer.render import PromptRenderer


@dataclass(frozen=True)
class ServedModel:
    """One loaded model behind its engine's front."""

    model_id: str
    facts: ModelFacts
    tokenizer: Tokenizer
    renderer: PromptRenderer
    engine: EngineFront
    parser: OutputParserFactory
    reasoning: tuple[str, str] | None = None
    """Spellings around reasoning, or None for a model without."""

    enforces_constraints: bool = False
    """Whether a grammar engine was chosen, so that structured output can be promised."""
