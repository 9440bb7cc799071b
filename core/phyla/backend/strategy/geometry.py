"""The sizes that decide which strategy is fast: what the points of a table are measured at and looked up by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from types import MappingProxyType
from typing import ClassVar

from phyla.backend.strategy.names import Operation


@dataclass(frozen=True)
class _Sizes:
    operation: ClassVar[Operation]

    def sizes(self) -> Mapping[str, int]:
        """What a table measures by."""
        return asdict(self)

    def __str__(self) -> str:
        return ", ".join(f"{value} {name.replace('_', ' ')}" for name, value in self.sizes().items())


@dataclass(frozen=True)
class AttentionGeometry(_Sizes):
    """Queries of one position per row over a stacked group."""

    operation: ClassVar[Operation] = "attention"

    rows: int
    stored: int
    """Columns that each seat has, real or not."""

    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class AppendGeometry(_Sizes):
    """One position per row into a stacked group."""

    operation: ClassVar[Operation] = "append"

    rows: int
    stored: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class MatmulGeometry(_Sizes):
    """A dense matrix and the rows that it is multiplied with."""

    operation: ClassVar[Operation] = "matmul"

    rows: int
    outputs: int
    inputs: int


@dataclass(frozen=True)
class QmmGeometry(_Sizes):
    """A quantised matrix and the rows that it is multiplied with."""

    operation: ClassVar[Operation] = "qmm"

    rows: int
    outputs: int
    inputs: int
    bits: int


@dataclass(frozen=True)
class DecodeGeometry(_Sizes):
    """A whole decode step."""

    operation: ClassVar[Operation] = "decode"

    rows: int
    hidden: int
    layers: int


Geometry = AttentionGeometry | AppendGeometry | MatmulGeometry | QmmGeometry | DecodeGeometry

SIZES: Mapping[Operation, tuple[str, ...]] = MappingProxyType(
    {
        kind.operation: tuple(one.name for one in fields(kind))
        for kind in (AttentionGeometry, AppendGeometry, MatmulGeometry, QmmGeometry, DecodeGeometry)
    }
)
"""What a point of each operation is measured by."""
