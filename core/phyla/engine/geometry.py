"""The sizes of a model's decode steps, and what the strategy tables say about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from phyla.backend.strategy import (
    Chosen,
    DecodeGeometry,
    MatmulGeometry,
    Operation,
    QmmGeometry,
    Strategies,
)
from phyla.kv.group_geometry import append_geometry, attention_geometry, usable_append, usable_attention
from phyla.kv.layer_spec import FULL, SLIDING
from phyla.nn.product_geometry import usable_products

if TYPE_CHECKING:
    from phyla.kv.layer_spec import LayerSpec, Layout
    from phyla.model.facts import ModelFacts
    from phyla.model.load_options import WeightForm

TYPICAL_STORED = 1024
"""Columns of a seat that the plan's lines speak of; a group looks its own number up."""


def typical_attending(layout: Layout) -> LayerSpec | None:
    """A layer that stands for all that attend to keys and values; None if there is none."""
    return next((one for one in layout if one.owns_state and one.kind in (FULL, SLIDING)), None)


def decode_geometry(facts: ModelFacts, rows: int) -> DecodeGeometry:
    """Of a whole step."""
    return DecodeGeometry(rows, facts.hidden_size, len(facts.layout))


def product_geometry(facts: ModelFacts, rows: int) -> QmmGeometry | None:
    """Of the products in a step, as one that stands for all; None where nothing is quantised."""
    if facts.quantization is None:
        return None
    return QmmGeometry(rows, facts.hidden_size, facts.hidden_size, int(facts.quantization.get("bits", 4)))


def chosen_product(strategies: Strategies, facts: ModelFacts, rows: int, weights: WeightForm | None) -> Chosen:
    """How quantised weights are multiplied, dense ones included while their form is open (None)."""
    geometry = product_geometry(facts, rows)
    if geometry is None or weights == "dense":
        return Chosen("dense", "the weights aren't quantised in memory")
    names = usable_products(strategies, geometry)
    return strategies.choose(geometry, names if weights is None else names - {"dense"})


def chosen_dense_product(strategies: Strategies, facts: ModelFacts, rows: int) -> Chosen:
    """How weights that aren't quantised in memory are multiplied."""
    geometry = MatmulGeometry(rows, facts.hidden_size, facts.hidden_size)
    return strategies.choose(geometry, usable_products(strategies, geometry))


def chosen_decode(strategies: Strategies, facts: ModelFacts, rows: int, asked: Literal["auto", "on", "off"]) -> Chosen:
    """Whether a step of so many rows is traced and replayed."""
    if asked != "auto":
        return Chosen("compiled" if asked == "on" else "eager", f"asked for with --compiled-decode {asked}")
    return strategies.choose(decode_geometry(facts, rows), ("compiled", "eager"))


def typical_choices(
    strategies: Strategies,
    facts: ModelFacts,
    rows: int,
    weights: WeightForm,
    compiled: Literal["auto", "on", "off"],
) -> Mapping[Operation, Chosen]:
    """What a step of so many rows with some thousand columns computes with; for people."""
    chosen: dict[Operation, Chosen] = {}
    attending = typical_attending(facts.layout)
    if attending is not None:
        stored = min(TYPICAL_STORED, facts.context_limit)
        by_attention = attention_geometry(attending, rows, stored)
        usable = usable_attention(attending, is_capped=attending.softcap is not None, is_stacked=False)
        chosen["attention"] = strategies.choose(by_attention, usable)
        chosen["append"] = strategies.choose(
            append_geometry(attending, rows, stored), usable_append(attending, wraps=attending.window is not None)
        )
    chosen["qmm"] = chosen_product(strategies, facts, rows, weights)
    if chosen["qmm"].name == "dense":
        chosen["matmul"] = chosen_dense_product(strategies, facts, rows)
    chosen["decode"] = chosen_decode(strategies, facts, rows, compiled)
    return chosen
