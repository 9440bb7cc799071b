"""Rows together against rows alone, on every kind of layer and mixes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phyla.engine.engine import EngineSpec
from phyla.testing.engines import toy_spec
from phyla.testing.row_equality import RowEqualityContract


class _Toy(RowEqualityContract):
    layers: str

    def spec(self, settings: Mapping[str, Any]) -> EngineSpec:
        return toy_spec(self.layers, settings)


class TestFull(_Toy):
    layers = "FF"
    group = "stacked"


class TestSliding(_Toy):
    layers = "SFS"
    group = "stacked"


class TestRecurrent(_Toy):
    layers = "RR"
    group = "stacked"


class TestLatent(_Toy):
    layers = "LL"


class TestHybrid(_Toy):
    layers = "RRF"
    group = "stacked"


class TestEverything(_Toy):
    layers = "FSRL"
