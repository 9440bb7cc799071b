"""A binding that passes everything on and remembers the logits it gave."""

from __future__ import annotations

import mlx.core as mx

from phyla.model.binding import Forward, LayerStates, ModelBinding
from phyla.model.step import StepInput


class RecordingBinding(ModelBinding):
    """Wraps a binding; same graph, same bits."""

    def __init__(self, inner: ModelBinding) -> None:
        super().__init__(inner.facts)
        self._inner = inner
        self.steps: list[StepInput] = []
        """Every forward, prefill included."""

        self.logits: list[mx.array] = []
        """What `head` gave, (1, M, V) each; evaluated by the engine before a token of it is emitted."""

    def embed(self, step: StepInput) -> mx.array:
        return self._inner.embed(step)

    def layer(self, index: int, hidden: mx.array, step: StepInput, states: LayerStates) -> mx.array:
        return self._inner.layer(index, hidden, step, states)

    def final_norm(self, hidden: mx.array) -> mx.array:
        return self._inner.final_norm(hidden)

    def start(self, step: StepInput, states: LayerStates) -> Forward:
        self.steps.append(step)
        return self._inner.start(step, states)

    def head(self, hidden: mx.array) -> mx.array:
        logits = self._inner.head(hidden)
        self.logits.append(logits)
        return logits
