"""Looking through a JSON schema for what an engine can't enforce, before the engine sees it.

Every standard keyword is either enforced by the engine or named in the refusal; what isn't a keyword of JSON Schema is
an annotation, as the standard says.

Source:
    JSON Schema 2020-12, Core and Validation; older drafts' keywords are known so that they are refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from phyla.kv.scheme import SUPPORTED, Support, refused

ANNOTATIONS = frozenset(
    {
        "$schema",
        "$comment",
        "$vocabulary",
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "contentMediaType",
        "contentEncoding",
        "contentSchema",
        "$defs",
        "definitions",
    }
)
"""Say nothing about what is valid."""

_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Their values are schemas."""

_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SINGLES = frozenset(
    {
        "items",
        "additionalProperties",
        "additionalItems",
        "not",
        "if",
        "then",
        "else",
        "contains",
        "propertyNames",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_COUNTS = frozenset({"minLength", "maxLength", "minItems", "maxItems"})
_MOST_OF_BOUND = 1 << 63
"""The engines keep bounds as 64-bit integers."""

_IN_PLACE = ("allOf", "anyOf", "oneOf")
"""Applied to the same value: a cycle through these alone says nothing about any value."""

KEYWORDS = (
    _MAPS
    | _LISTS
    | _SINGLES
    | ANNOTATIONS
    | frozenset(
        {
            "$ref",
            "$id",
            "id",
            "$anchor",
            "$dynamicRef",
            "$dynamicAnchor",
            "$recursiveRef",
            "$recursiveAnchor",
            "type",
            "enum",
            "const",
            "multipleOf",
            "maximum",
            "minimum",
            "exclusiveMaximum",
            "exclusiveMinimum",
            "maxLength",
            "minLength",
            "pattern",
            "format",
            "maxItems",
            "minItems",
            "uniqueItems",
            "maxContains",
            "minContains",
            "maxProperties",
            "minProperties",
            "required",
            "dependentRequired",
            "dependencies",
            "extends",
            "disallow",
            "divisibleBy",
        }
    )
)
"""Every keyword of the standard, of this and of older drafts."""

TYPES = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})


@dataclass(frozen=True)
class Enforceable:
    """What an engine can do."""

    engine: str
    keywords: frozenset[str]
    formats: frozenset[str] = frozenset()
    """Of `format`, where that is among the keywords."""


def check_schema(source: str, engine: Enforceable) -> Support:
    """Yes, or the keyword that can't be enforced or can't be satisfied, and where it stands."""
    try:
        schema = json.loads(source)
    except ValueError as error:
        return refused(f"the schema isn't JSON: {error}.")
    try:
        for located in _walk(schema, "#"):
            _check_one(located, schema, engine)
        _check_cycles(schema)
    except _No as no:
        return refused(str(no))
    except RecursionError:
        return refused("the schema is nested too deeply.")
    # Only an escape can spell one; the source itself is text.
    if "\\u" in source and _has_half_of_a_pair(schema):
        return refused("it has half of a surrogate pair, which no text can be.")
    return SUPPORTED


def subschemas(schema: Any, where: str) -> Iterator[tuple[Any, str]]:
    """Those directly below it, and where each stands."""
    if not isinstance(schema, dict):
        return
    for keyword, value in schema.items():
        for name, below in _below(keyword, value):
            yield below, f"{where}/{keyword}{name}"


def resolve_pointer(root: Any, reference: str) -> Any:
    """What a local reference (`#`, `#/$defs/a`, `#/anyOf/0`) points to.

    Raises:
        KeyError: nothing, or it isn't local.
    """
    if not reference.startswith("#"):
        raise KeyError(reference)
    target = root
    for step in unquote(reference[1:]).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, list) and name.isdigit() and int(name) < len(target):
            target = target[int(name)]
        elif isinstance(target, dict) and name in target:
            target = target[name]
        else:
            raise KeyError(reference)
    if reference not in ("#", "#/") and "/" not in reference:
        raise KeyError(reference)
    return target


class _No(Exception):
    """The reason why not."""


@dataclass(frozen=True)
class _Located:
    schema: Any
    where: str


def _walk(schema: Any, where: str) -> Iterator[_Located]:
    """The schema and every one below it."""
    yield _Located(schema, where)
    for below, place in subschemas(schema, where):
        yield from _walk(below, place)


def _below(keyword: str, value: Any) -> Iterable[tuple[str, Any]]:
    if keyword in _MAPS and isinstance(value, dict):
        return [(f"/{name}", one) for name, one in value.items()]
    if keyword in _LISTS and isinstance(value, list):
        return [(f"/{index}", one) for index, one in enumerate(value)]
    if keyword in _SINGLES and isinstance(value, dict | bool):
        return [("", value)]
    return ()


def _check_one(located: _Located, root: Any, engine: Enforceable) -> None:
    schema, where = located.schema, located.where
    if schema is False and where == "#":
        raise _No("the schema is false: no value satisfies it.")
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise _No(f"{where}{_holder(where)} isn't a schema: it must be an object, true or false.")
    for keyword, value in schema.items():
        if keyword in KEYWORDS and keyword not in ANNOTATIONS:
            _check_keyword(keyword, value, where, root, engine)


def _check_keyword(keyword: str, value: Any, where: str, root: Any, engine: Enforceable) -> None:
    if keyword in ("$id", "id") and where == "#":
        return
    if keyword not in engine.keywords:
        raise _No(f"keyword '{keyword}' at {where} can't be enforced by {engine.engine}.")
    if keyword == "format" and value not in engine.formats:
        raise _No(f"keyword 'format' at {where}: {engine.engine} can't enforce '{str(value)[:64]}'.")
    if keyword == "enum" and not (isinstance(value, list) and value):
        raise _No(f"keyword 'enum' at {where} must list at least one value.")
    if keyword == "type":
        _check_type(value, where)
    if keyword == "$ref":
        _check_ref(value, where, root)
    if keyword in _BOUNDS:
        _check_bound(keyword, value, where)
    if keyword in _COUNTS:
        _check_count(keyword, value, where)
    if keyword == "multipleOf" and not (_is_number(value) and value > 0):
        raise _No(f"keyword 'multipleOf' at {where} must be a number above 0.")
    if keyword == "pattern" and not isinstance(value, str):
        raise _No(f"keyword 'pattern' at {where} must be a string.")
    if keyword == "required" and not (isinstance(value, list) and all(isinstance(name, str) for name in value)):
        raise _No(f"keyword 'required' at {where} must be a list of strings.")
    if keyword in _SINGLES and not isinstance(value, dict | bool):
        raise _No(f"keyword '{keyword}' at {where} must be a schema (lists of them are 'prefixItems').")
    if keyword in _LISTS and not (isinstance(value, list) and value):
        raise _No(f"keyword '{keyword}' at {where} must list at least one schema.")
    if keyword in _MAPS and not isinstance(value, dict):
        raise _No(f"keyword '{keyword}' at {where} must be an object.")


def _check_type(value: Any, where: str) -> None:
    names = value if isinstance(value, list) else [value]
    if not names or not all(isinstance(name, str) and name in TYPES for name in names):
        raise _No(f"keyword 'type' at {where} must be among {', '.join(sorted(TYPES))}.")


def _check_bound(keyword: str, value: Any, where: str) -> None:
    if not _is_number(value):
        raise _No(f"keyword '{keyword}' at {where} must be a number.")
    if not abs(value) < _MOST_OF_BOUND:
        raise _No(f"keyword '{keyword}' at {where} is past 64 bits; leave the bound out.")


def _check_count(keyword: str, value: Any, where: str) -> None:
    if not _is_number(value) or value < 0 or value % 1:
        raise _No(f"keyword '{keyword}' at {where} must be a whole number, 0 or more.")
    if value >= _MOST_OF_BOUND:
        raise _No(f"keyword '{keyword}' at {where} is past 64 bits; leave the bound out.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _holder(where: str) -> str:
    """The keyword that this place is below of, where it isn't told by its last step."""
    steps = where.split("/")
    return f" (keyword '{steps[-2]}')" if len(steps) > 2 else ""


def _check_ref(value: Any, where: str, root: Any) -> None:
    if not isinstance(value, str) or not value.startswith("#"):
        raise _No(f"keyword '$ref' at {where}: '{str(value)[:128]}' is remote; nothing is fetched. Put it in '$defs'.")
    try:
        resolve_pointer(root, value)
    except KeyError:
        raise _No(f"keyword '$ref' at {where}: there is nothing at '{value[:128]}'.") from None


def _check_cycles(root: Any) -> None:
    """A reference that leads to itself without a value in between can't be satisfied."""
    done: set[int] = set()
    for located in _walk(root, "#"):
        try:
            _follow(located.schema, root, done, {})
        except RecursionError:
            raise _No(f"keyword '$ref' at {located.where} leads on to too many others.") from None


def _follow(schema: Any, root: Any, done: set[int], path: dict[int, None]) -> None:
    if not isinstance(schema, dict) or id(schema) in done:
        return
    if id(schema) in path:
        raise _No("keyword '$ref' leads in a circle without any value in between.")
    path[id(schema)] = None
    for below in _applied_in_place(schema, root):
        _follow(below, root, done, path)
    del path[id(schema)]
    done.add(id(schema))


def _applied_in_place(schema: Mapping[str, Any], root: Any) -> Iterator[Any]:
    if "$ref" in schema:
        yield resolve_pointer(root, schema["$ref"])
    for keyword in _IN_PLACE:
        yield from schema.get(keyword, ())


def _has_half_of_a_pair(schema: Any) -> bool:
    try:
        json.dumps(schema, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False
