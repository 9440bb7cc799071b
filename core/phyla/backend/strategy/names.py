"""The operations that can be computed in more than one way, and what the ways are called."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from phyla.errors import UnknownName

Operation = Literal["attention", "append", "matmul", "qmm", "decode"]

OPERATIONS: Mapping[Operation, Mapping[str, str]] = MappingProxyType(
    {
        "attention": {
            "fused": "one fused call over all seats, nothing masked: rows of one length only",
            "fused_mask": "one fused call over all seats with a boolean mask",
            "ragged": "a CUDA kernel of our own that reads no column beyond a row's end",
            "grouped": "two products over query heads grouped by their key head, and a float32 softmax",
            "loop": "a fused call per row over exactly its own columns",
        },
        "append": {
            "scatter": "one put_along_axis for all rows",
            "slices": "one slice_update per row",
            "rotated": "a CUDA kernel of our own that also norms and rotates the step's queries and keys",
        },
        "matmul": {
            "whole": "one product by MLX, however many rows",
            "streamed": "a CUDA kernel of our own for 2 to 32 rows, which costs the host less to start",
        },
        "qmm": {
            "whole": "one quantised product, however many rows",
            "streamed": "the same kernel, which unpacks 4 bits as it goes",
            "split16": "quantised products of at most 16 rows each; any number may stand for the 16",
            "unpacked": "the matrix is unpacked in every call, then multiplied dense",
            "dense": "the weights were unpacked once when they were loaded",
        },
        "decode": {
            "compiled": "the step is traced once per shape and replayed",
            "eager": "the step is built anew every time",
        },
    }
)
"""Each with what it does."""

_SPLIT = re.compile(r"split([1-9]\d{0,3})")


def rows_per_call(name: str) -> int | None:
    """Most rows of a call of the quantised product `splitN`; None for another strategy."""
    found = _SPLIT.fullmatch(name)
    return None if found is None else int(found[1])


def check_name(operation: Operation, name: str) -> None:
    """Raise UnknownName if the operation has no such strategy."""
    if name in OPERATIONS[operation] or (operation == "qmm" and rows_per_call(name) is not None):
        return
    raise UnknownName(f"strategy for {operation}", name, OPERATIONS[operation])
