"""Measured tables: how long each strategy took at some geometries, as JSON that is checked in or written by a bench."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from phyla.backend.device import Device
from phyla.backend.strategy.geometry import SIZES, Geometry
from phyla.backend.strategy.names import OPERATIONS, Operation, check_name
from phyla.errors import UnknownName, UsageError

FORMAT = 1
SHIPPED = Path(__file__).parent / "tables"
MOST_ROW_DOUBLINGS = 2.0
"""A point with more than four times, or less than a quarter of, the rows says nothing: cliffs lie between."""

MOST_BYTES = 4 * 2**20
"""Of a table file; one that a bench writes has some ten thousand."""


@dataclass(frozen=True)
class Point:
    """What the strategies of one operation took at one geometry."""

    operation: Operation
    sizes: Mapping[str, int]
    """Those of the geometry that it was measured at; one that is absent made no difference."""

    microseconds: Mapping[str, float]
    """By strategy; also of a whole decode step where only that was measured."""

    note: str = ""

    def distance(self, geometry: Geometry) -> float:
        """Sum of doublings between this point's sizes and the geometry's."""
        asked = geometry.sizes()
        return sum(abs(math.log2(asked[name] / size)) for name, size in self.sizes.items())

    def applies(self, geometry: Geometry) -> bool:
        """Whether it says anything about the geometry."""
        rows = self.sizes.get("rows")
        return rows is None or abs(math.log2(geometry.rows / rows)) <= MOST_ROW_DOUBLINGS

    def fastest(self, usable: Collection[str]) -> str | None:
        """The fastest of the strategies that can run, or None if none of them was measured."""
        measured = {name: time for name, time in self.microseconds.items() if name in usable}
        return min(measured, key=measured.__getitem__) if measured else None

    def as_json(self) -> dict[str, Any]:
        written: dict[str, Any] = {
            "operation": self.operation,
            "sizes": dict(self.sizes),
            "microseconds": dict(self.microseconds),
        }
        return written | ({"note": self.note} if self.note else {})


@dataclass(frozen=True)
class StrategyTable:
    """The points of one device, and what is taken where none says anything."""

    device: Device
    measured_on: str
    """Device, MLX version and dtype; empty where nobody measured."""

    defaults: Mapping[Operation, Sequence[str]]
    """Strategies by preference, for what isn't measured."""

    points: tuple[Point, ...] = ()
    source: str = field(default="shipped", compare=False)
    """Where it comes from, for people."""

    def nearest(self, geometry: Geometry, usable: Collection[str]) -> Point | None:
        """The nearest point that says something about a geometry and measured a strategy that can run."""
        candidates = [
            point
            for point in self.points
            if point.operation == geometry.operation and point.applies(geometry) and point.fastest(usable) is not None
        ]
        return min(candidates, key=lambda point: point.distance(geometry), default=None)

    def overridden_by(self, other: StrategyTable) -> StrategyTable:
        """This table with the other's points in place of its own, for each operation that the other measured."""
        measured = {point.operation for point in other.points}
        kept = tuple(point for point in self.points if point.operation not in measured)
        return replace(
            self,
            measured_on=other.measured_on,
            points=(*kept, *other.points),
            source=other.source,
        )

    def digest(self) -> str:
        """Of everything that a choice can depend on."""
        text = json.dumps(self.as_json(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def as_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "device": self.device,
            "measured_on": self.measured_on,
            "defaults": {operation: list(names) for operation, names in self.defaults.items()},
            "points": [point.as_json() for point in self.points],
        }


def shipped_table(device: Device) -> StrategyTable:
    """The table that comes with Phyla."""
    return read_table(SHIPPED / f"{device}.json", source="shipped")


def read_table(path: Path, source: str | None = None) -> StrategyTable:
    """Read a table file.

    Args:
        path: of the file.
        source: what people are told; by default the path.

    Raises:
        UsageError: it can't be read or isn't a table; says what is wrong with it.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(f"{path} is larger than {MOST_BYTES} bytes, which no strategy table is.")
        written = json.loads(path.read_text("utf-8"))
        return _table(written, source or str(path))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise UsageError(f"{path} can't be read as a strategy table: {error}.") from error
    except (_Malformed, UnknownName) as error:
        raise UsageError(
            f"{path} isn't a strategy table: {error} `phyla bench kernels --output FILE` writes one."
        ) from error


class _Malformed(Exception):
    """What is wrong with a table."""


def _table(written: Any, source: str) -> StrategyTable:
    table = _mapping(written, "the file")
    if table.get("format") != FORMAT:
        raise _Malformed(f"its format is {table.get('format')!r}, this version reads {FORMAT}.")
    device = table.get("device")
    if device not in ("metal", "cuda", "cpu"):
        raise _Malformed(f"its device is {device!r}; it has to be metal, cuda or cpu.")
    points = table.get("points")
    if not isinstance(points, list):
        raise _Malformed("'points' has to be a list.")
    return StrategyTable(
        device=device,
        measured_on=str(table.get("measured_on", "")),
        defaults=_defaults(_mapping(table.get("defaults"), "'defaults'")),
        points=tuple(_point(_mapping(one, "a point")) for one in points),
        source=source,
    )


def _defaults(written: Mapping[str, Any]) -> Mapping[Operation, Sequence[str]]:
    defaults: dict[Operation, Sequence[str]] = {}
    for operation in OPERATIONS:
        names = written.get(operation)
        if not isinstance(names, list) or not names:
            raise _Malformed(f"'defaults' has no list for {operation}.")
        for name in names:
            check_name(operation, str(name))
        defaults[operation] = tuple(names)
    return defaults


def _point(written: Mapping[str, Any]) -> Point:
    operation: Operation | None = next((one for one in OPERATIONS if one == written.get("operation")), None)
    if operation is None:
        raise _Malformed(f"a point's operation is {written.get('operation')!r}; known are {', '.join(OPERATIONS)}.")
    sizes = _numbers(written.get("sizes"), f"sizes of a point of {operation}", whole=True)
    if unknown := sorted(set(sizes) - set(SIZES[operation])):
        raise _Malformed(f"{operation} has no {', '.join(unknown)}; it is measured by {', '.join(SIZES[operation])}.")
    microseconds = _numbers(written.get("microseconds"), f"microseconds of a point of {operation}")
    for name in microseconds:
        check_name(operation, name)
    return Point(
        operation,
        {name: int(size) for name, size in sizes.items()},
        microseconds,
        str(written.get("note", "")),
    )


def _numbers(written: Any, what: str, whole: bool = False) -> dict[str, float]:
    kinds = int if whole else int | float
    numbers = _mapping(written, what)
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, kinds) or not 0 < number < 1e15:
            raise _Malformed(f"{what}: {name} is {number!r}; it has to be a positive number.")
    return {str(name): number for name, number in numbers.items()}


def _mapping(written: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(written, dict):
        raise _Malformed(f"{what} has to be an object.")
    return written
