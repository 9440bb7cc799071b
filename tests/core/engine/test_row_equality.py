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


class TestSliding(_Toy):
    layers = "SFS"


class TestRecurrent(_Toy):
    layers = "RR"


class TestLatent(_Toy):
    layers = "LL"


class TestHybrid(_Toy):
    layers = "RRF"


class TestEverything(_Toy):
    layers = "FSRL"
