"""The model that is served, as far as HTTP needs to know it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from phyla.engine import EngineFront
from phyla.model.facts import ModelFacts
from phyla.output import OutputParserFactory
from phyla.request import Rendered
from phyla.tokenizer import Tokenizer


class Renderer(Protocol):
    """Turns what a client sent into a prompt. Thread-safe."""

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        template_args: Mapping[str, Any] = ...,
        add_generation_prompt: bool = True,
    ) -> Rendered: ...

    def render_text(self, text: str) -> Rendered: ...

    def render_ids(self, ids: Sequence[int]) -> Rendered: ...


@dataclass(frozen=True)
class ServedModel:
    """One loaded model behind its engine's front."""

    model_id: str
    facts: ModelFacts
    tokenizer: Tokenizer
    renderer: Renderer
    engine: EngineFront
    parser: OutputParserFactory
    reasoning: tuple[str, str] | None = None
    """Spellings around reasoning, or None for a model without."""

    enforces_constraints: bool = False
    """Whether a grammar engine was chosen, so that structured output can be promised."""
