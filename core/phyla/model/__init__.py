"""What a model is to core: facts before loading, a binding after, one step between them.

Nothing here imports mlx before an array is made: declarations may name any of it.
"""

from phyla.model.facts import ModelFacts, ReasoningMarkers, WeightBytes
from phyla.model.family import Claim, ExplainsItself, Family
from phyla.model.load_options import LoadOptions, Progress, WeightForm, no_progress
from phyla.model.step import Overlay, Route, StepInput, StepOutput, Tap, width_class

__all__ = [
    "Claim",
    "ExplainsItself",
    "Family",
    "LoadOptions",
    "ModelFacts",
    "Overlay",
    "Progress",
    "ReasoningMarkers",
    "Route",
    "StepInput",
    "StepOutput",
    "Tap",
    "WeightBytes",
    "WeightForm",
    "no_progress",
    "width_class",
]
