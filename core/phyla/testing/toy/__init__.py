"""A toy family whose layers are any mix of kinds, for tests of everything around a model.

`toy_binding("FSRL", seed=0)` is a runnable model without a checkpoint: F full attention, S sliding, R a gated
recurrence, L latent attention. `ToyFamily` opens the same model from a checkpoint whose `model_type` is "toy".
"""

from phyla.testing.toy.config import ToyConfig, toy_config, toy_facts, toy_layout, toy_shapes
from phyla.testing.toy.family import ToyFamily, toy_binding

__all__ = ["ToyConfig", "ToyFamily", "toy_binding", "toy_config", "toy_facts", "toy_layout", "toy_shapes"]
