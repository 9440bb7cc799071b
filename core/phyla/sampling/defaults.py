"""Which value a request gets for a field that it leaves out: flag, then the model's own, then ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from phyla.sampling.settings import SamplingSettings

FALLBACK_TEMPERATURE = 0.7
NO_THINK_CEILING = 0.7
"""Turns without reasoning are never warmer by default: models state a temperature for their reasoning."""


@dataclass(frozen=True)
class SamplingDefaults:
    """The server's values, flags and generation_config merged."""

    temperature: float = FALLBACK_TEMPERATURE
    temperature_is_explicit: bool = False
    """It came from a flag, a variable or the settings file, so that the ceiling doesn't apply."""

    top_p: float = 0.0
    top_k: int = 0
    repetition_penalty: float = 0.0

    def temperature_for(self, thinking: bool | None) -> float:
        """The temperature of a turn that gives none.

        Args:
            thinking: whether the turn reasons; None for a model that knows no such thing.
        """
        if thinking is False and not self.temperature_is_explicit:
            return min(self.temperature, NO_THINK_CEILING)
        return self.temperature


GREEDY = SamplingDefaults(temperature=0.0, temperature_is_explicit=True)
"""What `phyla generate` and the library start from: the model's own sampling defaults aren't applied."""


def merge_defaults(settings: SamplingSettings, generation_config: Mapping[str, float]) -> SamplingDefaults:
    """Flags before generation_config before ours; values of generation_config that make no sense are passed over."""
    return SamplingDefaults(
        temperature=_first(settings.temperature, _within(generation_config, "temperature"), FALLBACK_TEMPERATURE),
        temperature_is_explicit=settings.temperature is not None,
        top_p=_first(settings.top_p, _within(generation_config, "top_p", most=1.0), 0.0),
        top_k=int(_first(settings.top_k, _within(generation_config, "top_k"), 0)),
        repetition_penalty=_first(None, _within(generation_config, "repetition_penalty"), 0.0),
    )


def _first(flag: float | None, model: float | None, ours: float) -> float:
    if flag is not None:
        return flag
    return ours if model is None else model


def _within(values: Mapping[str, float], name: str, most: float = 1e6) -> float | None:
    value = values.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        return None
    return value
