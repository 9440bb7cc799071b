"""Records for listeners: one frozen value per event, delivered off the engine thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from phyla.request import Usage


@dataclass(frozen=True)
class EngineStarted:
    """The weights are loaded and requests are taken."""

    model_id: str
    family: str
    load_seconds: float
    weight_bytes: int


@dataclass(frozen=True)
class StepFinished:
    """One step of the engine."""

    kind: Literal["prefill", "decode", "verify"]
    num_rows: int
    num_tokens: int
    """Real tokens computed."""

    seconds: float


@dataclass(frozen=True)
class RequestFinished:
    """One request ended, however it ended."""

    request_id: str
    outcome: Literal["stop", "length", "cancelled", "failed"]
    usage: Usage | None
    error: str | None = None


Record = EngineStarted | StepFinished | RequestFinished
