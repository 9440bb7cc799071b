"""The engine: a scheduler that decides, a runner that computes, a front that is thread-safe."""

from phyla.engine.front import EngineFront, EngineHealth, EventSink, Shutdown
from phyla.engine.records import EngineStarted, RequestFinished, StepFinished

__all__ = [
    "EngineFront",
    "EngineHealth",
    "EngineStarted",
    "EventSink",
    "RequestFinished",
    "Shutdown",
    "StepFinished",
]
