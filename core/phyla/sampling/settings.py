"""Sampling values that a server starts with."""

from __future__ import annotations

from phyla.settings import PluginSettings, setting


class SamplingSettings(PluginSettings, section="sampling"):
    """The `[sampling]` section: what a request that says nothing gets."""

    temperature: float | None = setting(
        None, flag="--temperature", aliases=("--temp",), ge=0, le=5, allow_inf_nan=False
    )
    """Temperature of requests that give none; 0 is greedy. Unset: the model's own, else 0.7."""

    top_p: float | None = setting(None, flag="--top-p", ge=0, le=1, allow_inf_nan=False)
    """Nucleus mass of requests that give none; 0 and 1 are off. Unset: the model's own, else off."""

    top_k: int | None = setting(None, flag="--top-k", ge=0, le=1_000_000)
    """Most likely tokens kept for requests that don't say; 0 is off. Unset: the model's own, else off."""
