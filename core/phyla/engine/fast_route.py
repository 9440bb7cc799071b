"""How the fast route computes, as the plan decided it; and the part of `/stats` that says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from phyla.engine.geometry import chosen_decode, typical_choices

if TYPE_CHECKING:
    from phyla.backend.strategy import Chosen, Operation, Strategies
    from phyla.engine.ahead import AheadCounts
    from phyla.engine.compiled_step import CompiledCounts
    from phyla.model.facts import ModelFacts
    from phyla.model.load_options import WeightForm


CompiledOption = Literal["auto", "on", "off"]


@dataclass(frozen=True)
class FastRoute:
    """What chooses between ways of computing the same."""

    strategies: Strategies
    weights: WeightForm = "stored"
    compiled_decode: CompiledOption = "auto"
    room_bytes: int = 1 << 62
    """Of memory, for all that MLX holds."""

    starts_ahead: bool = False
    """Verify windows are started before their tokens are known."""

    device_waits: bool = False
    """The device can wait for what the host posts. Where windows are started ahead, what rounds drew is then also read
    where the device writes it."""

    def compiles(self, facts: ModelFacts, rows: int) -> bool:
        """Whether a step of so many seats is to be traced and replayed."""
        return chosen_decode(self.strategies, facts, rows, self.compiled_decode).name == "compiled"

    def choices(self, facts: ModelFacts, rows: int) -> Mapping[Operation, Chosen]:
        """What a step of so many rows computes with, at a typical length; for people."""
        return typical_choices(self.strategies, facts, rows, self.weights, self.compiled_decode)

    def stats(self, facts: ModelFacts, rows: int, counts: CompiledCounts, ahead: AheadCounts) -> dict[str, Any]:
        """JSON values."""
        table = self.strategies.table
        return {
            "rows": rows,
            "table": table.source,
            "measured_on": table.measured_on or None,
            "digest": self.strategies.digest(),
            "weights": self.weights,
            **{operation: one.name for operation, one in self.choices(facts, rows).items()},
            "compiled": {**asdict(counts), "retraces": counts.retraces},
            "ahead": asdict(ahead) if self.starts_ahead else None,
        }
