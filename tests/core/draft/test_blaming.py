"""A refusal names the keywords that it is about, whatever the compiler's own words are."""

from __future__ import annotations

import json

import pytest
from phyla.draft.blaming import blamed, costliest
from phyla.errors import ConstraintError
from phyla.output.structure import JsonValue, Literal, Structure, sequence
from phyla.request import ConstraintSpec

BETWEEN = {"type": "integer", "minimum": 9, "maximum": 1}
FAILED = ConstraintError("it fails")


def refuses_what_is_between(source):
    """A compiler that can't stand bounds the wrong way round, wherever they are, nor a shared part that is missing."""

    def look(schema):
        if isinstance(schema, dict):
            if schema.get("minimum", 0) > schema.get("maximum", 10):
                raise FAILED
            for below in schema.values():
                look(below)

    schema = json.loads(source)
    assert "$ref" not in source or "$defs" in schema
    look(schema)


def said_of(schema, attempt=refuses_what_is_between, kind="json_schema"):
    return blamed(ConstraintSpec(kind, json.dumps(schema)), FAILED, attempt)


def test_the_keywords_are_named_without_those_that_dont_matter():
    assert said_of(BETWEEN) == "keywords 'minimum', 'maximum' at #: it fails"


def test_the_deepest_part_that_fails_alone_is_named():
    schema = {"properties": {"a": {"type": "string"}, "b": {"items": BETWEEN}}, "required": ["b"]}
    assert said_of(schema) == "keywords 'minimum', 'maximum' at #/properties/b/items: it fails"


def test_parts_are_tried_with_what_is_shared():
    schema = {"$defs": {"a": {"type": "string"}}, "properties": {"a": {"$ref": "#/$defs/a"}, "b": BETWEEN}}
    assert "at #/properties/b: " in said_of(schema)


def test_where_nothing_fails_alone_all_of_it_is_named():
    schema = {"type": "object", "properties": {"a": True}, "description": "much"}

    def too_large(source):
        if json.loads(source) == schema:
            raise FAILED

    assert said_of(schema, too_large) == "keywords 'type', 'properties' at #: it fails"


def test_what_takes_many_attempts_is_named_by_more_than_it_must_be():
    schema = {"properties": {**{f"p{index}": {} for index in range(500)}, "last": BETWEEN}}
    assert said_of(schema) == "keyword 'properties' at #: it fails"


def test_a_schema_within_a_call_is_searched_too():
    source = Structure(sequence(Literal("call "), JsonValue(json.dumps(BETWEEN)))).to_source()
    assert blamed(ConstraintSpec("structural_tag", source), FAILED, refuses_what_is_between).startswith("keywords 'min")


def test_what_isnt_a_schema_keeps_its_error():
    assert blamed(ConstraintSpec("regex", "("), FAILED, refuses_what_is_between) == "it fails"


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "string", "enum": ["a" * 500], "maxLength": 9}, "keyword 'enum'"),
        ({"allOf": [{"type": "integer", "multipleOf": 7}, {"multipleOf": 9}]}, "keyword 'multipleOf'"),
        ({"properties": {"a": {"pattern": "(a{99}){99}"}}}, "keyword 'pattern'"),
        ({"properties": {"a": {}, "b": {}}, "required": ["a", "b"]}, "keywords 'properties', 'required'"),
        ({"type": "string"}, ""),
        (True, ""),
    ],
)
def test_what_makes_a_schema_slow_is_guessed_from_its_text(schema, named):
    assert costliest(ConstraintSpec("json_schema", json.dumps(schema))) == named
