"""Which strategies the plan computes with, and whether what was forced can run at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from phyla.backend import BackendFacts
from phyla.backend.strategy import (
    MatmulGeometry,
    Operation,
    QmmGeometry,
    Strategies,
    StrategySettings,
    load_strategies,
)
from phyla.engine.settings import EngineSettings
from phyla.errors import RefusedCombination, UsageError
from phyla.kv import KVScheme, LayerSpec
from phyla.kv.group_geometry import why_not_ragged, why_not_rotated
from phyla.kv.layer_spec import FULL, SLIDING
from phyla.model import ModelFacts
from phyla.nn.product_geometry import MOST_STREAMED_ROWS, STREAMED_INPUTS, STREAMED_OUTPUTS, why_not_streamed
from phyla.selection.schemes import PLAIN_NAME
from phyla.selection.settings import SelectionSettings
from phyla.selection.wanted import Wanted
from phyla.settings import Settings

STREAMED_EXAMPLE = (MOST_STREAMED_ROWS, STREAMED_OUTPUTS, STREAMED_INPUTS)
"""Sizes that the kernel takes: matrices and steps of other sizes are multiplied whole."""


@dataclass(frozen=True)
class ChosenStrategies:
    """The tables and what is forced."""

    strategies: Strategies
    notices: tuple[str, ...] = ()

    def weights(self, wanted: Wanted) -> Wanted:
        """The weight form that is wanted, where a forced product has one."""
        forced = self.strategies.forced.get("qmm")
        if forced is None or not wanted.is_auto:
            return wanted
        form = "dense" if forced == "dense" else "stored"
        return Wanted(form, "flag", "--strategy", f"--strategy qmm={forced} multiplies {form} weights")


def choose_strategies(settings: Settings, backend: BackendFacts) -> ChosenStrategies:
    """The table of this device and what `--strategy` forces.

    Raises:
        UsageError: a strategy or table that doesn't exist or can't be used.
    """
    loaded = load_strategies(settings.section(StrategySettings), backend)
    return ChosenStrategies(loaded.strategies, loaded.notices)


def check_strategies(
    strategies: Strategies,
    settings: Settings,
    facts: ModelFacts,
    layers: tuple[KVScheme, ...],
    wanted_weights: Wanted,
    pinned_by: str | None,
) -> tuple[str, ...]:
    """Refuse a forced strategy that can't run; lines for those that can't have an effect.

    Args:
        strategies: with what is forced.
        settings: batch, route, compiling.
        facts: of the model.
        layers: scheme of each layer.
        wanted_weights: what `--weights` says.
        pinned_by: the flag that keeps the checkpoint's own weights, or None.

    Raises:
        RefusedCombination: another flag excludes it.
        UsageError: this model can't be computed like that; says why.
    """
    forced = strategies.forced
    if forced.get("matmul") == "streamed":
        _check_streamed("--strategy matmul=streamed", MatmulGeometry(*STREAMED_EXAMPLE))
    if "qmm" in forced:
        _check_product(forced["qmm"], facts, wanted_weights, pinned_by)
    if forced.get("append") == "rotated":
        _check_rotated("--strategy append=rotated", facts)
    if "attention" in forced:
        _check_attention(forced["attention"], settings, facts, layers)
    if settings.section(SelectionSettings).compiled_decode == "on":
        _check_compiled(settings, facts)
    return tuple(_without_effect(frozenset(forced), settings, facts, layers))


def _check_product(name: str, facts: ModelFacts, wanted: Wanted, pinned_by: str | None) -> None:
    asked = f"--strategy qmm={name}"
    if facts.quantization is None:
        raise UsageError(f"{asked}: the checkpoint isn't quantised, so there is nothing to choose. Leave it away.")
    if name == "dense" and pinned_by is not None:
        raise RefusedCombination(f"{asked}: {pinned_by} keeps the checkpoint's own weights. Leave one of them away.")
    if name == "streamed":
        _check_streamed(asked, QmmGeometry(*STREAMED_EXAMPLE, int(facts.quantization.get("bits", 4))))
        mode = facts.quantization.get("mode", "affine")
        if mode != "affine":
            raise UsageError(f"{asked}: it is written for affine numbers, and here are {mode}. Use whole.")
    excluded = "stored" if name == "dense" else "dense"
    if wanted.name == excluded:
        raise RefusedCombination(f"{asked} can't multiply --weights {excluded}. Leave one of them away.")


def _check_streamed(asked: str, geometry: MatmulGeometry | QmmGeometry) -> None:
    reason = why_not_streamed(geometry)
    if reason is not None:
        raise UsageError(f"{asked}: {reason}. Use whole.")


def check_dtype(strategies: Strategies, dtype: str) -> None:
    """Refuse a forced strategy that computes in other numbers.

    Raises:
        UsageError: a kernel isn't written for this dtype.
    """
    streamed = next((kind for kind, name in strategies.forced.items() if name == "streamed"), None)
    if streamed is not None and dtype == "float32":
        raise UsageError(
            f"--strategy {streamed}=streamed: it is written for bfloat16 and float16, and the model computes in "
            "float32. Use whole, or --dtype bfloat16."
        )


def _check_attention(name: str, settings: Settings, facts: ModelFacts, layers: tuple[KVScheme, ...]) -> None:
    asked = f"--strategy attention={name}"
    attending = _attending(facts)
    if not attending:
        raise UsageError(f"{asked}: no layer of this model attends to keys and values.")
    if not _reached(facts, layers):
        scheme = layers[attending[0].index].identity
        raise UsageError(f"{asked}: KV scheme '{scheme}' attends in its own way. Use --kv-scheme plain.")
    if name == "fused":
        raise UsageError(
            f"{asked}: without a mask, rows of different lengths would see what lies behind the end of the shorter "
            "ones. Use fused_mask, grouped or loop."
        )
    capped = next((layer for layer in attending if layer.softcap is not None), None)
    if name in ("fused_mask", "ragged") and capped is not None:
        raise UsageError(
            f"{asked}: the scores of layer {capped.index} are capped at {capped.softcap:g}, which no fused kernel "
            "does. Use grouped or loop."
        )
    if name == "ragged":
        _check_ragged(asked, attending)
    group = settings.section(EngineSettings).group
    if group != "auto" and (name == "loop") != (group == "loop"):
        raise RefusedCombination(f"{asked} excludes --group {group}. Leave one of them away.")
    if name == "loop" and settings.section(SelectionSettings).compiled_decode == "on":
        raise RefusedCombination(
            f"{asked} can't be traced, since every step has other shapes: --compiled-decode on excludes it. "
            "Use grouped or fused_mask, or --compiled-decode off."
        )


def _check_ragged(asked: str, attending: Sequence[LayerSpec]) -> None:
    for layer in attending:
        reason = why_not_ragged(layer.plane("keys").width, layer.plane("values").width)
        if reason is not None:
            raise UsageError(f"{asked}: {reason}. Use grouped.")


def _check_rotated(asked: str, facts: ModelFacts) -> None:
    """Sliding layers of the model go on scattering; at least one has to be stored like that."""
    reasons = [
        why_not_rotated(layer.plane("keys").width, layer.plane("values").width, wraps=layer.window is not None)
        for layer in _attending(facts)
    ]
    if not reasons:
        raise UsageError(f"{asked}: no layer of this model attends to keys and values.")
    if all(reasons):
        raise UsageError(f"{asked}: {reasons[0]}. Use scatter.")


def _check_compiled(settings: Settings, facts: ModelFacts) -> None:
    if not facts.can_cut_forward:
        raise UsageError(
            f"--compiled-decode on: models of family '{facts.family}' run whole, over caches of their own that can't "
            "be traced over. Leave it away."
        )
    if settings.section(EngineSettings).group == "loop":
        raise RefusedCombination(
            "--compiled-decode on traces over buffers that rows share, which --group loop excludes. Leave one away."
        )


def _without_effect(
    forced: frozenset[Operation], settings: Settings, facts: ModelFacts, layers: tuple[KVScheme, ...]
) -> Iterator[str]:
    options = settings.section(SelectionSettings)
    is_never_fast = options.route == "exact" or (
        options.route == "auto" and settings.section(EngineSettings).batch == 1
    )
    why = "--route exact" if options.route == "exact" else "--batch 1"
    if options.compiled_decode == "on" and is_never_fast:
        yield f"--compiled-decode on has no effect: {why} computes as mlx-lm does."
    if options.windows_ahead == "on" and is_never_fast:
        yield f"--windows-ahead on has no effect: {why} computes as mlx-lm does."
    if not forced:
        return
    if is_never_fast:
        yield f"--strategy has no effect: {why} computes as mlx-lm does."
    encoded = [layer.index for layer in _attending(facts) if layers[layer.index].name != PLAIN_NAME]
    if encoded and forced & {"attention", "append"}:
        yield f"--strategy doesn't reach layers {_listed(encoded)}: their KV scheme attends in its own way."


def _attending(facts: ModelFacts) -> list[LayerSpec]:
    return [layer for layer in facts.layout if layer.kind in (FULL, SLIDING)]


def _reached(facts: ModelFacts, layers: tuple[KVScheme, ...]) -> bool:
    return any(layers[layer.index].name == PLAIN_NAME for layer in _attending(facts))


def _listed(indices: list[int]) -> str:
    shown = ", ".join(str(index) for index in indices[:8])
    return shown if len(indices) <= 8 else f"{shown}, ..."
