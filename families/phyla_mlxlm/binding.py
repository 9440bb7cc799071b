"""mlx-lm's model as a binding of one layer: ids go in, logits come out, and the head has nothing left to do."""

from __future__ import annotations

import importlib
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from phyla import Checkpoint, LoadOptions, ModelBinding, ModelFacts, StepInput
from phyla.model.binding import LayerStates

from phyla_mlxlm.caches import check_supported
from phyla_mlxlm.loading import load_model


class Bridged:
    """mlx-lm's module, spoken to as a model that is given its caches."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def new_caches(self) -> list[Any]:
        return list(make_prompt_cache(self._module))

    def run(self, ids: mx.array, caches: list[Any]) -> mx.array:
        logits: mx.array = self._module(ids, cache=caches)
        return logits


class BridgedBinding(ModelBinding):
    """A loaded model of mlx-lm's.

    Its classes give logits and nothing on the way, so that the rows between `layer` and `head` are logits already.
    """

    def __init__(self, facts: ModelFacts, model: Bridged) -> None:
        super().__init__(facts)
        self._model = model

    def embed(self, step: StepInput) -> mx.array:
        """The ids as they are, (B*L, 1): the model embeds them itself."""
        return step.ids.reshape(-1, 1)

    def layer(self, index: int, hidden: mx.array, step: StepInput, states: LayerStates) -> mx.array:
        """The whole model: (B*L, 1) ids to (B*L, V) logits."""
        logits: mx.array = states[index].advance(self._model, step.ids, step.num_real)
        return logits.squeeze(0)

    def head(self, hidden: mx.array) -> mx.array:
        return hidden


def load_binding(checkpoint: Checkpoint, facts: ModelFacts, options: LoadOptions) -> BridgedBinding:
    """Load the weights.

    Raises:
        UnsupportedModel: mlx-lm can't make this model, or keeps a cache that the bridge doesn't know.
        WeightMismatch: tensors that are missing, unused or misshapen.
    """
    architecture = importlib.import_module(f"mlx_lm.models.{facts.architecture}")
    model = Bridged(load_model(architecture, checkpoint, facts, options))
    check_supported(model.new_caches(), facts.architecture)
    return BridgedBinding(facts, model)
