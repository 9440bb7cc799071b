"""Looking a constraint over before anything is compiled: how deep it is nested, and what the engine says.

Reading a long source takes milliseconds during which no other thread of Python runs, so it is done in another process.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from phyla.kv.scheme import Support, refused

if TYPE_CHECKING:
    from phyla.request import ConstraintSpec

STRUCTURED_KINDS = frozenset({"json_object", "json_schema", "choice", "structural_tag"})
"""Kinds whose source is JSON."""

MAX_QUICK_CHARS = 1 << 14
"""A source up to this long takes a fraction of a millisecond to look over, and as a rule little time to compile."""


def is_long(spec: ConstraintSpec) -> bool:
    """Whether looking it over would keep other threads waiting."""
    return len(spec.source) > MAX_QUICK_CHARS


def look_over(spec: ConstraintSpec, supports: Callable[[ConstraintSpec], Support], max_nesting: int) -> Support:
    """Yes, or what stands against it."""
    if spec.kind in STRUCTURED_KINDS and _nesting(spec.source) > max_nesting:
        return refused(f"it is nested more than {max_nesting} deep.")
    return supports(spec)


def _nesting(source: str) -> int:
    """Depth of objects and arrays, read without recursion."""
    try:
        levels = [json.loads(source)]
    except (ValueError, RecursionError):
        # Malformed JSON is the engine's to refuse; what Python's own parser can't nest is too deep for anybody.
        return 0 if source.count("[") + source.count("{") < 1000 else 1 << 30
    depth = 0
    while levels:
        depth += 1
        levels = [
            below
            for value in levels
            if isinstance(value, dict | list)
            for below in (value.values() if isinstance(value, dict) else value)
            if isinstance(below, dict | list)
        ]
    return depth
