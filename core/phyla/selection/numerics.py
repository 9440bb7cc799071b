"""In which numbers a model computes: dtype, weight form, chunk rule, and the identity they add up to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from phyla.backend import BackendFacts
from phyla.backend.dtypes import resolve_dtype, resolve_weights
from phyla.backend.identity import NumericalIdentity
from phyla.backend.strategy import Chosen
from phyla.checkpoint import Checkpoint
from phyla.engine.chunks import chunk_rule
from phyla.kv.plain import dtype_bytes
from phyla.model import ModelFacts, WeightForm
from phyla.model.headers import is_ignored
from phyla.plan import Choice, RouteOption
from phyla.selection.wanted import Wanted


@dataclass(frozen=True)
class Numerics:
    """The decisions, each with its reason."""

    dtype: Choice
    weights: Choice

    @property
    def weight_form(self) -> WeightForm:
        return "dense" if self.weights.name == "dense" else "stored"


def choose_numerics(
    dtype: Wanted,
    weights: Wanted,
    pinned_by: str | None,
    checkpoint: Checkpoint,
    facts: ModelFacts,
    backend: BackendFacts,
    product: Chosen,
) -> Numerics:
    """Dtype and weight form.

    Args:
        dtype: what was asked for.
        weights: what was asked for.
        pinned_by: the flag that pins the checkpoint's own weight form, or None.
        checkpoint: its headers say what dequantised weights would take.
        facts: of the model.
        backend: where it will run.
        product: the fastest way to multiply its weights.

    Raises:
        UsageError: what was asked for doesn't exist, or doesn't fit.
    """
    resolved = resolve_dtype(dtype.name, facts.stored_dtype, backend)
    dtype_choice = dtype.choice(resolved.value, resolved.reason if dtype.is_auto else "")
    if weights.is_auto and pinned_by is not None:
        return Numerics(dtype_choice, weights.choice("stored", f"{pinned_by} keeps the checkpoint's own form"))
    dense = dense_bytes(checkpoint, facts, resolved.value)
    requested = cast(Literal["auto", "stored", "dense"], weights.name)
    form = resolve_weights(requested, facts.weight_bytes.total, dense, backend, product)
    return Numerics(dtype_choice, weights.choice(form.value, form.reason if weights.is_auto else ""))


def dense_bytes(checkpoint: Checkpoint, facts: ModelFacts, dtype: str) -> int:
    """Bytes of all weights that the model uses in a dtype; a quantised one counts a number for each of its scales'
    group."""
    group_size = int((facts.quantization or {}).get("group_size", 64))
    infos = checkpoint.tensor_infos()
    num_numbers = 0
    for name, info in infos.items():
        if is_ignored(name, facts.ignored_tensors):
            continue
        prefix, _, leaf = name.rpartition(".")
        if f"{prefix}.scales" in infos:
            num_numbers += _count(info.shape) * group_size if leaf == "scales" else 0
        else:
            num_numbers += _count(info.shape)
    return num_numbers * dtype_bytes(dtype)


def identify(
    backend: BackendFacts,
    numerics: Numerics,
    route: RouteOption,
    strategy_digest: str,
    facts: ModelFacts,
    chunk: int | None,
) -> NumericalIdentity:
    """What decides the low bits of everything this plan computes.

    Args:
        chunk: explicit tokens per prefill chunk; None applies the rule to a prompt as long as the context allows.
    """
    return NumericalIdentity(
        mlx_version=backend.mlx_version,
        device=backend.device,
        device_name=backend.device_name,
        dtype=numerics.dtype.name,
        blas=backend.blas,
        route=route,
        weights=numerics.weight_form,
        strategy_digest=strategy_digest,
        prefill_chunk=chunk_rule(facts.layout, facts.context_limit, facts.scores_are_materialised, chunk),
    )


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for axis in shape:
        count *= axis
    return count
