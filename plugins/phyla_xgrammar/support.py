"""What xgrammar enforces, told without importing it.

The library leaves out what it doesn't know, with a line on standard error at best: so nothing reaches it that isn't
listed here. Lengths and patterns of strings aren't: with them it lets raw control characters into a string (0.2.9),
which is no JSON (test_what_a_random_model_writes_is_valid).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from phyla.draft.json_schema import Enforceable, check_schema
from phyla.kv.scheme import SUPPORTED, Support, refused
from phyla.output.structure import Structure, parse_structure
from phyla.request import ConstraintSpec

NAME = "xgrammar"

ENFORCEABLE = Enforceable(
    engine=NAME,
    keywords=frozenset(
        {
            "$ref",
            "type",
            "enum",
            "const",
            "anyOf",
            "properties",
            "additionalProperties",
            "required",
            "items",
            "prefixItems",
            "minItems",
            "maxItems",
            "minimum",
            "maximum",
            "exclusiveMinimum",
            "exclusiveMaximum",
        }
    ),
)

UNSUPPORTED_REGEX = re.compile(r"\(\?(?!:)|\\[bBpPkuxcAzZG1-9]|(?<!\\)\\\d")
"""Assertions, back references and classes that the library ignores or reads otherwise."""

IN_PLACE = frozenset({"$ref", "anyOf", "enum", "const"})
"""Each replaces the rest of its schema in the library; beside another keyword one of the two would be lost."""

BY_TYPE = {
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
    "object": frozenset({"properties", "additionalProperties", "required"}),
}
"""Keywords that the library reads only beside their type, and the type."""

NAMES = ((str, "string"), (list, "array"), (dict, "object"))
"""Of the types that need no closer look."""


def supports(spec: ConstraintSpec) -> Support:
    """Yes, or what it can't enforce."""
    if spec.kind == "json_object":
        return SUPPORTED
    if spec.kind == "json_schema":
        return check(spec.source)
    if spec.kind == "regex":
        found = UNSUPPORTED_REGEX.search(spec.source)
        return SUPPORTED if found is None else refused(f"{NAME} can't enforce '{found.group()}' in a regex.")
    if spec.kind == "grammar":
        return SUPPORTED if "::=" in spec.source else refused(f"{NAME} takes EBNF (`root ::= ...`), not Lark.")
    if spec.kind == "choice":
        options = json.loads(spec.source)
        is_good = options and all(isinstance(one, str) and one for one in options)
        return SUPPORTED if is_good else refused("a choice needs strings, none of them empty.")
    if spec.kind == "structural_tag":
        return _structure(parse_structure(spec.source))
    return refused(f"{NAME} doesn't know constraints of kind '{spec.kind}'.")


def check(source: str) -> Support:
    """As `check_schema`, and nothing in it that the library would read otherwise than the standard."""
    support = check_schema(source, ENFORCEABLE)
    if not support:
        return support
    reasons = (reason for schema in _schemas(json.loads(source)) if (reason := _lost(schema)) is not None)
    return next((refused(reason) for reason in reasons), SUPPORTED)


def _structure(structure: Structure) -> Support:
    return next((answer for schema in structure.schemas() if not (answer := check(schema))), SUPPORTED)


def _schemas(value: Any) -> Iterator[dict[str, Any]]:
    """Every schema; values of `enum` and `const` aren't any."""
    if isinstance(value, list):
        for one in value:
            yield from _schemas(one)
    if not isinstance(value, dict):
        return
    yield value
    for keyword, below in value.items():
        if keyword in ("properties", "$defs", "definitions") and isinstance(below, dict):
            for one in below.values():
                yield from _schemas(one)
        elif keyword in ("items", "additionalProperties", "anyOf", "prefixItems"):
            yield from _schemas(below)


def _lost(schema: dict[str, Any]) -> str | None:
    asked = [keyword for keyword in schema if keyword in ENFORCEABLE.keywords]
    for keyword in asked:
        if keyword in IN_PLACE and any(other != keyword for other in asked if other != "type" or keyword == "$ref"):
            return f"keyword '{keyword}' beside other keywords can't be enforced by {NAME}."
    if not _are_of_type(schema):
        return f"keyword 'type' beside listed values of other types can't be enforced by {NAME}."
    types = schema.get("type")
    known = {"number" if types == "integer" else types} if isinstance(types, str) else set()
    for name, keywords in BY_TYPE.items():
        lost = next((keyword for keyword in asked if keyword in keywords and name not in known), None)
        if lost is not None:
            return f"keyword '{lost}' without the one type '{name}' beside it can't be enforced by {NAME}."
    if schema.get("properties") and schema.get("additionalProperties") is not False:
        # A further key may be one of the listed ones in another spelling ("\\u0061" is "a"), past its schema.
        return f"keyword 'properties' without 'additionalProperties': false can't be enforced by {NAME}."
    if unlisted := sorted(set(schema.get("required", ())) - set(schema.get("properties", ()))):
        return f"keyword 'required' of '{unlisted[0]}', which isn't among 'properties', can't be enforced by {NAME}."
    return None


def _are_of_type(schema: dict[str, Any]) -> bool:
    """Whether every value that is listed is of the schema's type, which the library forgets beside a list."""
    if "type" not in schema:
        return True
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    listed = [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else ())]
    return all(_names_of(value) & set(types) for value in listed)


def _names_of(value: Any) -> set[str]:
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int | float):
        return {"number", "integer"} if float(value).is_integer() else {"number"}
    return {next((name for kind, name in NAMES if isinstance(value, kind)), "null")}
