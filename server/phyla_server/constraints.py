"""Structured output: what the answer must look like, or a refusal if nothing here can enforce it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from phyla.request import ConstraintSpec

from phyla_server.errors import bad_request
from phyla_server.fields import Fields


def read_constraint(fields: Fields, *, enforced: bool) -> ConstraintSpec | None:
    """The first of guided_grammar, response_format, structured_outputs, guided_regex and guided_choice that is given.

    Args:
        enforced: whether a grammar engine was chosen. Without one a constraint is refused, never ignored.

    Raises:
        ApiError: 400 for a malformed or unenforceable constraint.
    """
    field, spec = _first(fields)
    if spec is not None and not enforced:
        raise bad_request(
            f"{field} can't be enforced: no grammar engine is active. Install one (phyla[xgrammar]) or choose one "
            f"with --proposer.",
            field,
        )
    return spec


def _first(fields: Fields) -> tuple[str, ConstraintSpec | None]:
    grammar = fields.text("guided_grammar")
    if grammar is not None:
        return "guided_grammar", ConstraintSpec("grammar", grammar)
    response_format = fields.mapping("response_format")
    if response_format is not None and response_format.get("type") != "text":
        return "response_format", _response_format(response_format)
    structured = fields.mapping("structured_outputs")
    if structured is not None:
        return "structured_outputs", ConstraintSpec("json_schema", json.dumps(structured))
    regex = fields.text("guided_regex")
    if regex is not None:
        return "guided_regex", ConstraintSpec("regex", regex)
    choices = fields.array("guided_choice")
    if choices is not None:
        if not choices or not all(isinstance(one, str) for one in choices):
            raise bad_request("guided_choice must be a list of strings", "guided_choice")
        return "guided_choice", ConstraintSpec("choice", json.dumps(list(choices)))
    return "", None


def _response_format(value: Mapping[str, Any]) -> ConstraintSpec:
    if value.get("type") == "json_object":
        return ConstraintSpec("json_object", "{}")
    if value.get("type") != "json_schema":
        raise bad_request("response_format.type must be one of 'text', 'json_object', 'json_schema'", "response_format")
    named = value.get("json_schema")
    schema = named.get("schema") if isinstance(named, dict) else None
    if not isinstance(schema, dict | bool):
        raise bad_request("response_format.json_schema.schema must be a JSON schema", "response_format")
    return ConstraintSpec("json_schema", json.dumps(schema))
