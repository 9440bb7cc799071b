"""What a model is to core: facts before loading, a binding after, one step between them.

`binding` imports mlx and is imported where it is needed; the rest is plain Python.
"""

from phyla.model.facts import ModelFacts, ReasoningMarkers, WeightBytes
from phyla.model.family import Claim, Family
from phyla.model.load_options import LoadOptions, Progress, WeightForm, no_progress
from phyla.model.step import Overlay, Route, StepInput, StepOutput, Tap, width_class

__all__ = [
    "Claim",
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
