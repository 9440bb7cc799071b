"""How the fast route computes, as the plan decided it; and the part of `/stats` that says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from phyla.engine.geometry import typical_choices

if TYPE_CHECKING:
    from phyla.backend.strategy import Chosen, Operation, Strategies
    from phyla.model.facts import ModelFacts
    from phyla.model.load_options import WeightForm


@dataclass(frozen=True)
class FastRoute:
    """What chooses between ways of computing the same."""

    strategies: Strategies
    weights: WeightForm = "stored"
    compiled_decode: Literal["auto", "on", "off"] = "auto"

    def choices(self, facts: ModelFacts, rows: int) -> Mapping[Operation, Chosen]:
        """What a step of so many rows computes with, at a typical length; for people."""
        return typical_choices(self.strategies, facts, rows, self.weights, self.compiled_decode)

    def stats(self, facts: ModelFacts, rows: int) -> dict[str, Any]:
        """JSON values."""
        table = self.strategies.table
        return {
            "rows": rows,
            "table": table.source,
            "measured_on": table.measured_on or None,
            "digest": self.strategies.digest(),
            "weights": self.weights,
            **{operation: one.name for operation, one in self.choices(facts, rows).items()},
        }
