"""Structured output: the fields that say what the answer must look like."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from phyla.request import ConstraintSpec

from phyla_server.asked import AskedConstraint
from phyla_server.errors import bad_request
from phyla_server.fields import Fields

NAMED_KINDS: Mapping[str, str] = {
    "json": "json_schema",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
    "json_object": "json_object",
}
"""Members of `structured_outputs` that say what it holds; without one of them it is a schema itself."""


def read_constraint(fields: Fields) -> AskedConstraint | None:
    """The first that is given of the fields below, in the order below.

    Raises:
        ApiError: 400 for one that is malformed.
    """
    for field, read in (
        ("guided_grammar", _grammar),
        ("response_format", _response_format),
        ("guided_json", _guided_json),
        ("structured_outputs", _structured_outputs),
        ("guided_regex", _regex),
        ("guided_choice", _choice),
    ):
        spec = read(fields, field)
        if spec is not None:
            return AskedConstraint(field, spec)
    return None


def _grammar(fields: Fields, field: str) -> ConstraintSpec | None:
    grammar = fields.text(field)
    return None if grammar is None else ConstraintSpec("grammar", grammar)


def _regex(fields: Fields, field: str) -> ConstraintSpec | None:
    regex = fields.text(field)
    return None if regex is None else ConstraintSpec("regex", regex)


def _choice(fields: Fields, field: str) -> ConstraintSpec | None:
    options = fields.array(field)
    return None if options is None else _choice_of(list(options), field)


def _guided_json(fields: Fields, field: str) -> ConstraintSpec | None:
    value = fields.body.get(field)
    return None if value is None else _schema_of(value, field)


def _response_format(fields: Fields, field: str) -> ConstraintSpec | None:
    value = fields.mapping(field)
    if value is None or value.get("type") == "text":
        return None
    if value.get("type") == "json_object":
        return ConstraintSpec("json_object", "{}")
    if value.get("type") != "json_schema":
        raise bad_request("response_format.type must be one of 'text', 'json_object', 'json_schema'", field)
    named = value.get("json_schema")
    if not isinstance(named, dict):
        raise bad_request("response_format.json_schema must be an object with a name and a schema", field)
    options = Fields(named)
    any_whitespace = options.flag("any_whitespace")
    return _schema_of(named.get("schema"), "response_format.json_schema.schema", compact=any_whitespace is False)


def _structured_outputs(fields: Fields, field: str) -> ConstraintSpec | None:
    value = fields.mapping(field)
    if value is None:
        return None
    kinds = [name for name in NAMED_KINDS if name in value]
    if not kinds or "type" in value:
        return _schema_of(value, field)
    if len(kinds) > 1:
        raise bad_request(f"structured_outputs holds both '{kinds[0]}' and '{kinds[1]}'; send one", field)
    kind, held = kinds[0], value[kinds[0]]
    if kind == "json":
        return _schema_of(held, field)
    if kind == "json_object":
        return ConstraintSpec("json_object", "{}") if held else None
    if kind == "choice":
        return _choice_of(held, field)
    if not isinstance(held, str):
        raise bad_request(f"structured_outputs.{kind} must be of type str", field)
    return ConstraintSpec(NAMED_KINDS[kind], held)


def _schema_of(value: Any, field: str, *, compact: bool = False) -> ConstraintSpec:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise bad_request(f"{field} isn't JSON: {error}", field.split(".")[0]) from error
    if not isinstance(value, dict | bool):
        raise bad_request(f"{field} must be a JSON schema", field.split(".")[0])
    return ConstraintSpec("json_schema", json.dumps(value, ensure_ascii=False), compact=compact)


def _choice_of(options: Any, field: str) -> ConstraintSpec:
    if not isinstance(options, list) or not options or not all(isinstance(one, str) for one in options):
        raise bad_request(f"{field} must be a non-empty list of strings", field)
    return ConstraintSpec("choice", json.dumps(options, ensure_ascii=False))
