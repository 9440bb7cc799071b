"""The scripted model itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from phyla.model.binding import LayerStates, ModelBinding
from phyla.model.facts import ModelFacts, WeightBytes
from phyla.model.step import WIDTH_CLASSES, Route, StepInput
from phyla.testing.scripted.state import script_layer
from phyla.tokenizer import Tokenizer

NAN = -1
"""What a script answers for a row of logits that are no numbers."""

Script = Callable[[Sequence[int]], int]
"""`(prompt and everything since) -> next token id, or NAN`."""


@dataclass(frozen=True)
class StepSeen:
    """A step as the model sees it, before it is computed."""

    width: int
    num_real: tuple[int, ...]
    route: Route


OnStep = Callable[[StepSeen], None]


def ignore_step(step: StepSeen) -> None:
    """Does nothing."""


def scripted_facts(vocab_size: int, context_limit: int = 100_000) -> ModelFacts:
    """Facts of a model that weighs nothing."""
    return ModelFacts(
        family="scripted",
        architecture="scripted",
        layout=(script_layer(),),
        hidden_size=1,
        vocab_size=vocab_size,
        context_limit=context_limit,
        weight_bytes=WeightBytes(resident=0),
        stored_dtype="float32",
    )


def scripted_binding(tokenizer: Tokenizer, script: Script, on_step: OnStep = ignore_step) -> ScriptedBinding:
    """A scripted model for that tokenizer."""
    return ScriptedBinding(scripted_facts(tokenizer.vocab_size), script, on_step)


class ScriptedBinding(ModelBinding):
    """Logits whose largest is what the script says; `steps` are all the forwards it was asked for."""

    def __init__(self, facts: ModelFacts, script: Script, on_step: OnStep = ignore_step) -> None:
        super().__init__(facts)
        self._script = script
        self._on_step = on_step
        self.steps: list[StepSeen] = []

    @property
    def num_computed(self) -> int:
        """Tokens that went through the forward."""
        return sum(sum(step.num_real) for step in self.steps)

    def embed(self, step: StepInput) -> mx.array:
        seen = StepSeen(step.width, step.num_real, step.route)
        self._on_step(seen)
        self.steps.append(seen)
        return mx.zeros((step.num_rows * step.width, 1))

    def layer(self, index: int, hidden: mx.array, step: StepInput, states: LayerStates) -> mx.array:
        ids: list[list[int]] = step.ids.tolist()  # type: ignore[assignment]
        histories = states[index].append(ids, step.num_real)
        answers = [
            self._answers(history, count, step.width) for history, count in zip(histories, step.num_real, strict=True)
        ]
        return mx.array(answers, dtype=mx.float32).reshape(-1, 1)

    def head(self, hidden: mx.array) -> mx.array:
        distance = mx.abs(mx.arange(self.facts.vocab_size) - hidden)
        return mx.where(hidden < 0, mx.array(mx.nan), -distance)

    def _answers(self, history: Sequence[int], num_real: int, width: int) -> list[int]:
        """One answer per position; in prefill nobody asks for any but the last."""
        first = 0 if width <= WIDTH_CLASSES[-1] else num_real - 1
        before = len(history) - num_real
        answers = [
            self._script(history[: before + position + 1]) if position >= first else 0 for position in range(num_real)
        ]
        return answers + [0] * (width - num_real)
