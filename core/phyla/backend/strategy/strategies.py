"""The choice between strategies: what was forced, else what the table says, with the reason."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from phyla.backend.strategy.geometry import Geometry
from phyla.backend.strategy.names import Operation
from phyla.backend.strategy.table import StrategyTable


@dataclass(frozen=True)
class Chosen:
    """A strategy and why it was taken."""

    name: str
    reason: str


@dataclass(frozen=True)
class Strategies:
    """What a plan holds and everything that chooses asks. Frozen and picklable."""

    table: StrategyTable
    forced: Mapping[Operation, str] = field(default_factory=dict)
    """What a user insists on. That it can run was checked when the plan was made."""

    def choose(self, geometry: Geometry, usable: Collection[str]) -> Chosen:
        """The strategy for a geometry.

        Args:
            geometry: which operation, and its sizes.
            usable: names of the strategies that can run; at least one.
        """
        forced = self.forced.get(geometry.operation)
        if forced in usable and forced is not None:
            return Chosen(forced, "asked for with --strategy")
        point = self.table.nearest(geometry, usable)
        if point is not None:
            name = point.fastest(usable)
            assert name is not None, "the nearest point measured something usable"
            return Chosen(name, self._why(geometry, point.sizes, point.microseconds[name]))
        preferred = self.table.defaults[geometry.operation]
        name = next((one for one in preferred if one in usable), None)
        return Chosen(name or min(usable), f"not measured on {self.table.device} for {geometry}")

    def product_names(self, operation: Operation = "qmm") -> frozenset[str]:
        """Products that can be chosen: those with a fixed name, and every `splitN` that was measured or forced."""
        named = {name for point in self.table.points if point.operation == operation for name in point.microseconds}
        return frozenset({*named, *self.table.defaults[operation], *filter(None, [self.forced.get(operation)])})

    def digest(self) -> str:
        """Of all that decides a choice: it is part of the numerical identity."""
        forced = json.dumps(dict(sorted(self.forced.items())))
        return hashlib.sha256((self.table.digest() + forced).encode()).hexdigest()[:32]

    def _why(self, geometry: Geometry, sizes: Mapping[str, int], microseconds: float) -> str:
        asked = geometry.sizes()
        at = ", ".join(f"{size} {name.replace('_', ' ')}" for name, size in sizes.items())
        is_exact = all(asked[name] == size for name, size in sizes.items())
        return f"{microseconds:g} us measured at {'' if is_exact else 'the nearest, '}{at}"
