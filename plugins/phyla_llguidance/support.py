"""What llguidance enforces, told without importing it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from phyla.draft.json_schema import Enforceable, check_schema
from phyla.kv.scheme import SUPPORTED, Support, refused
from phyla.output.structure import Structure, parse_structure
from phyla.request import ConstraintSpec

NAME = "llguidance"

ENFORCEABLE = Enforceable(
    engine=NAME,
    keywords=frozenset(
        {
            "$ref",
            "type",
            "enum",
            "const",
            "allOf",
            "anyOf",
            "oneOf",
            "properties",
            "patternProperties",
            "additionalProperties",
            "required",
            "items",
            "prefixItems",
            "minItems",
            "maxItems",
            "minLength",
            "maxLength",
            "pattern",
            "format",
            "minimum",
            "maximum",
            "exclusiveMinimum",
            "exclusiveMaximum",
            "multipleOf",
        }
    ),
    formats=frozenset({"date", "time", "date-time", "uuid"}),
)

UNSPELLABLE = re.compile(r"[\x00-\x07\x0b\x0e-\x1f]")
"""Characters that JSON writes with \\u alone, which answers don't use."""


def supports(spec: ConstraintSpec) -> Support:
    """Yes, or what it can't enforce."""
    if spec.kind in ("json_object", "regex"):
        return SUPPORTED
    if spec.kind == "json_schema":
        return _schema(spec.source)
    if spec.kind == "grammar":
        return SUPPORTED
    if spec.kind == "choice":
        return _choice(spec.source)
    if spec.kind == "structural_tag":
        return _structure(parse_structure(spec.source))
    return refused(f"{NAME} doesn't know constraints of kind '{spec.kind}'.")


def _schema(source: str) -> Support:
    support = check_schema(source, ENFORCEABLE)
    if not support:
        return support
    for keyword, leaf in _leaves(json.loads(source), "the schema"):
        if isinstance(leaf, str) and UNSPELLABLE.search(leaf):
            return refused(f"keyword '{keyword}' has a string with a control character, and {NAME} can't spell one.")
        if isinstance(leaf, int) and not _is_float(leaf):
            return refused(
                f"keyword '{keyword}' has the integer {_shortened(leaf)}, which {NAME} would round to a 64-bit float."
            )
    return SUPPORTED


def _leaves(value: Any, keyword: str) -> Iterator[tuple[str, Any]]:
    """Every number and string in it, names of properties too, and the keyword that has it."""
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield keyword, name
            yield from _leaves(one, name if name in ENFORCEABLE.keywords else keyword)
    elif isinstance(value, list):
        for one in value:
            yield from _leaves(one, keyword)
    else:
        yield keyword, value


def _is_float(number: int) -> bool:
    try:
        return int(float(number)) == number
    except OverflowError:
        return False


def _shortened(number: int) -> str:
    digits = str(number)
    return digits if len(digits) <= 24 else f"{digits[:20]}... of {len(digits)} digits"


def _choice(source: str) -> Support:
    options = json.loads(source)
    if not options or not all(isinstance(one, str) and one for one in options):
        return refused("a choice needs strings, none of them empty.")
    return SUPPORTED


def _structure(structure: Structure) -> Support:
    answers = (_schema(schema) for schema in structure.schemas())
    return next((answer for answer in answers if not answer), SUPPORTED)
