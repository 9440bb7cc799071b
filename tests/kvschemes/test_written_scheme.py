"""The scheme that the page on writing one shows is a scheme."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
from phyla.kv import SUPPORTED, KVScheme, LayerSpec, Plane
from phyla.kv.encoded import create_encoded, encoded_bytes_per_token
from phyla.kv.plain.attention import attend
from phyla.testing.scheme import SchemeContract

PAGE = Path(__file__).parents[2] / "docs" / "kvschemes" / "README.md"


def encoding_of(layer: LayerSpec) -> Any:
    found = re.search(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert found is not None
    names: dict[str, Any] = {"Plane": Plane, "mx": mx, "attend": attend}
    exec(found[1], names)
    return names["HalfEncoding"](layer)


class TestHalf(SchemeContract):
    layer = LayerSpec(0, "full", (Plane("keys", 2, 8), Plane("values", 2, 16)), scale=0.35, num_query_heads=4)
    scheme = KVScheme(
        name="half",
        kinds=frozenset({"full", "sliding"}),
        supports=lambda layer, backend: SUPPORTED,
        create=lambda layer, backend, dtype: create_encoded(layer, encoding_of(layer)),
        bytes_per_token=lambda layer, dtype: encoded_bytes_per_token(layer, encoding_of(layer).planes, dtype),
    )
    error_bound = 2e-3


class TestHalfRing(TestHalf):
    layer = replace(TestHalf.layer, kind="sliding", window=8)
