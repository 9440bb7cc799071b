"""The toy as a family, and the shortest way to a runnable one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from phyla.model.family import Claim
from phyla.model.headers import eos_ids, sampling_defaults, stored_dtype, weight_bytes
from phyla.model.quantization import quant_section
from phyla.testing.toy.config import ToyConfig, toy_config, toy_facts, toy_shapes

if TYPE_CHECKING:
    from phyla.checkpoint import Checkpoint
    from phyla.model.binding import ModelBinding
    from phyla.model.facts import ModelFacts
    from phyla.model.load_options import LoadOptions


class ToyFamily:
    """The toy as a family plugin would declare it."""

    name = "toy"

    def claim(self, config: Mapping[str, Any]) -> Claim:
        return Claim.CLOSE if config.get("model_type") == "toy" else Claim.NONE

    def describe(self, checkpoint: Checkpoint) -> ModelFacts:
        return toy_facts(
            ToyConfig.from_dict(checkpoint.config),
            weight_bytes=weight_bytes(checkpoint),
            stored_dtype=stored_dtype(checkpoint),
            eos_ids=eos_ids(checkpoint),
            sampling_defaults=sampling_defaults(checkpoint),
            quantization=quant_section(checkpoint.config),
        )

    def bind(self, checkpoint: Checkpoint, facts: ModelFacts, options: LoadOptions) -> ModelBinding:
        from phyla.model.loading import load_weights
        from phyla.testing.toy.binding import ToyBinding

        config = ToyConfig.from_dict(checkpoint.config)
        shapes = toy_shapes(config)
        tensors = load_weights(
            checkpoint,
            options,
            lambda load: {name: load.tensor(name, shape) for name, shape in shapes.items()},
            ignored=facts.ignored_tensors,
        )
        return ToyBinding(config, facts, tensors)


def toy_binding(layers: str = "FF", seed: int = 0, **changes: Any) -> ModelBinding:
    """A toy with seeded random weights, in float32, made on the calling thread.

    Args:
        layers: one letter per layer, of F, S, R and L.
        seed: of the weights.
        changes: other fields of `ToyConfig`.
    """
    from phyla.testing.toy.binding import ToyBinding
    from phyla.testing.weights import random_tensors

    config = ToyConfig.from_dict(toy_config(layers, **changes))
    return ToyBinding(config, toy_facts(config), random_tensors(toy_shapes(config), seed))
