"""Phyla serves language models on MLX; every model family, KV scheme, draft method and proposer is a plugin.

Importing this package loads no mlx, no plugin and no model code: names are looked up when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phyla.baseline import Baseline
    from phyla.checkpoint import Checkpoint, CheckpointOpener, TensorInfo
    from phyla.draft import (
        ConstraintEngine,
        Drafter,
        DraftFacts,
        DraftMethod,
        DraftProvider,
        DraftTarget,
        LoadableDrafter,
        Observed,
        RowProposal,
        Span,
        SpanSource,
    )
    from phyla.draft.fill import FillSource
    from phyla.errors import PhylaError
    from phyla.hookspecs import hookimpl
    from phyla.kv import CacheCodec, KVScheme, LayerSpec, LayerState
    from phyla.library import Model, load
    from phyla.model import Claim, Family, LoadOptions, ModelFacts
    from phyla.model.binding import ModelBinding
    from phyla.model.step import StepInput, StepOutput
    from phyla.output import OutputParser, OutputParserFactory
    from phyla.plan import Plan
    from phyla.request import Rendered, Request, SamplingParams
    from phyla.sampling import NamedSampler
    from phyla.settings import PluginSettings, Settings, setting

_HOMES = {
    "Baseline": "phyla.baseline",
    "CacheCodec": "phyla.kv",
    "Checkpoint": "phyla.checkpoint",
    "CheckpointOpener": "phyla.checkpoint",
    "Claim": "phyla.model",
    "ConstraintEngine": "phyla.draft",
    "DraftFacts": "phyla.draft",
    "DraftMethod": "phyla.draft",
    "DraftProvider": "phyla.draft",
    "DraftTarget": "phyla.draft",
    "Drafter": "phyla.draft",
    "Family": "phyla.model",
    "FillSource": "phyla.draft.fill",
    "KVScheme": "phyla.kv",
    "LayerSpec": "phyla.kv",
    "LayerState": "phyla.kv",
    "LoadOptions": "phyla.model",
    "LoadableDrafter": "phyla.draft",
    "Model": "phyla.library",
    "ModelBinding": "phyla.model.binding",
    "ModelFacts": "phyla.model",
    "NamedSampler": "phyla.sampling",
    "Observed": "phyla.draft",
    "OutputParser": "phyla.output",
    "OutputParserFactory": "phyla.output",
    "PhylaError": "phyla.errors",
    "Plan": "phyla.plan",
    "PluginSettings": "phyla.settings",
    "Rendered": "phyla.request",
    "Request": "phyla.request",
    "RowProposal": "phyla.draft",
    "SamplingParams": "phyla.request",
    "Settings": "phyla.settings",
    "Span": "phyla.draft",
    "SpanSource": "phyla.draft",
    "StepInput": "phyla.model.step",
    "StepOutput": "phyla.model.step",
    "TensorInfo": "phyla.checkpoint",
    "hookimpl": "phyla.hookspecs",
    "load": "phyla.library",
    "setting": "phyla.settings",
}

__all__ = [
    "Baseline",
    "CacheCodec",
    "Checkpoint",
    "CheckpointOpener",
    "Claim",
    "ConstraintEngine",
    "DraftFacts",
    "DraftMethod",
    "DraftProvider",
    "DraftTarget",
    "Drafter",
    "Family",
    "FillSource",
    "KVScheme",
    "LayerSpec",
    "LayerState",
    "LoadOptions",
    "LoadableDrafter",
    "Model",
    "ModelBinding",
    "ModelFacts",
    "NamedSampler",
    "Observed",
    "OutputParser",
    "OutputParserFactory",
    "PhylaError",
    "Plan",
    "PluginSettings",
    "Rendered",
    "Request",
    "RowProposal",
    "SamplingParams",
    "Settings",
    "Span",
    "SpanSource",
    "StepInput",
    "StepOutput",
    "TensorInfo",
    "hookimpl",
    "load",
    "setting",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'phyla' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
