"""What crosses from a front end to the engine and back: plain picklable data, no arrays, no mlx."""

from phyla.request.events import (
    EngineEvent,
    Failed,
    Finished,
    FinishReason,
    Started,
    Token,
    TokenLogprobs,
    Usage,
)
from phyla.request.rendered import MediaSpan, Rendered
from phyla.request.request import ConstraintSpec, Request
from phyla.request.sampling_params import SamplingParams

__all__ = [
    "ConstraintSpec",
    "EngineEvent",
    "Failed",
    "FinishReason",
    "Finished",
    "MediaSpan",
    "Rendered",
    "Request",
    "SamplingParams",
    "Started",
    "Token",
    "TokenLogprobs",
    "Usage",
]
