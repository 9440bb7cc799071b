"""What each kind of constraint allows, and what is refused by name."""

from __future__ import annotations

import contextlib
import json

import pytest
from phyla.errors import ConstraintError
from phyla.request import ConstraintSpec
from phyla.sampling.token_mask import allows


def accepts(matcher, tokenizer, text):
    """Whether the whole text is allowed, token by token."""
    for token_id in tokenizer.encode(text, parse_special=False):
        if not allows(matcher.mask(), token_id):
            return False
        matcher.accept(token_id)
    return True


def schema(value):
    return json.dumps(value, ensure_ascii=False)


def test_end_of_sequence_is_allowed_only_where_the_answer_is_complete(opens, tokenizer):
    matcher = opens("json_schema", schema({"type": "integer"}))
    [eos] = tokenizer.eos_ids

    before = allows(matcher.mask(), eos)
    assert accepts(matcher, tokenizer, "12")

    assert not before
    assert allows(matcher.mask(), eos)
    assert not matcher.is_satisfied


def test_an_answer_that_can_only_end_is_satisfied(opens, tokenizer):
    matcher = opens("json_object", "{}")
    assert accepts(matcher, tokenizer, '{"a": {"b": []}}')
    assert matcher.is_satisfied


def test_whitespace_is_bounded(opens, tokenizer):
    assert accepts(opens("json_object", "{}"), tokenizer, '{\n    "a": 1}')
    assert not accepts(opens("json_object", "{}"), tokenizer, '{"a":' + " " * 9 + "1}")


def test_compact_json_has_no_whitespace(opens, tokenizer):
    value = schema({"type": "array", "items": {"type": "integer"}})
    assert not accepts(opens("json_schema", value, compact=True), tokenizer, "[1, 2]")
    assert accepts(opens("json_schema", value, compact=True), tokenizer, "[1,2]")


@pytest.mark.parametrize("member", ["北京", "naïve", "😀"])
def test_members_of_an_enum_come_out_exactly(opens, tokenizer, member):
    matcher = opens("json_schema", schema({"enum": ["北京", "naïve", "😀"]}))
    assert accepts(matcher, tokenizer, json.dumps(member, ensure_ascii=False))
    assert matcher.is_satisfied


def test_an_escape_counts_as_one_character(opens, tokenizer):
    value = schema({"type": "string", "maxLength": 5})
    assert accepts(opens("json_schema", value), tokenizer, r'"\"\"\"\"\""')
    assert not accepts(opens("json_schema", value), tokenizer, r'"\"\"\"\"\"\""')


def test_an_enum_behind_a_reference_is_enforced(opens, tokenizer):
    value = schema({"type": "object", "properties": {"c": {"$ref": "#/$defs/c"}}, "$defs": {"c": {"enum": ["red"]}}})
    assert accepts(opens("json_schema", value), tokenizer, '{"c": "red"}')
    assert not accepts(opens("json_schema", value), tokenizer, '{"c": "blue"}')


def test_a_reference_into_a_list_is_resolved(opens, tokenizer):
    value = schema({"anyOf": [{"const": 1}, {"type": "array", "items": {"$ref": "#/anyOf/0"}}]})
    assert accepts(opens("json_schema", value), tokenizer, "[1, 1]")
    assert not accepts(opens("json_schema", value), tokenizer, "[2")


def test_a_recursive_schema_works(opens, tokenizer):
    node = {"type": "object", "properties": {"c": {"$ref": "#/$defs/n"}}, "additionalProperties": False}
    value = schema({"$ref": "#/$defs/n", "$defs": {"n": node}})
    assert accepts(opens("json_schema", value), tokenizer, '{"c": {"c": {}}}')
    assert not accepts(opens("json_schema", value), tokenizer, '{"c": 1')


REFUSED = {
    "not": {"not": {"type": "string"}},
    "uniqueItems": {"type": "array", "uniqueItems": True},
    "if": {"if": {"type": "string"}, "then": {"minLength": 2}},
    "contains": {"contains": {"type": "string"}},
    "dependentRequired": {"dependentRequired": {"a": ["b"]}},
    "propertyNames": {"propertyNames": {"maxLength": 3}},
    "unevaluatedProperties": {"unevaluatedProperties": False},
    "minProperties": {"type": "object", "minProperties": 2},
    "format": {"type": "string", "format": "idn-email"},
    "$dynamicRef": {"$dynamicRef": "#a"},
    "enum": {"enum": []},
    "$ref": {"$ref": "https://example.org/schema"},
    "type": {"type": "text"},
    "minimum": {"type": "integer", "minimum": -(10**300)},
    "maximum": {"type": "number", "maximum": "9"},
    "maxItems": {"type": "array", "maxItems": -5},
    "minItems": {"type": "array", "minItems": 10**30},
    "required": {"type": "object", "required": "a"},
    "items": {"items": [{"type": "string"}]},
    "properties": {"properties": {"a": "string"}},
}


@pytest.mark.parametrize("keyword", REFUSED)
@pytest.mark.parametrize("place", ["root", "property"])
def test_what_cant_be_enforced_is_refused_by_its_keyword(compiler, keyword, place):
    value = REFUSED[keyword] if place == "root" else {"type": "object", "properties": {"p": REFUSED[keyword]}}
    support = compiler.supports(ConstraintSpec("json_schema", schema(value)))
    assert not support
    assert f"'{keyword}'" in support.reason


@pytest.mark.parametrize(
    "value",
    [False, {"$ref": "#"}, {"anyOf": [{"$ref": "#"}]}, {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}],
)
def test_what_nothing_satisfies_is_refused(compiler, value):
    assert not compiler.supports(ConstraintSpec("json_schema", schema(value)))


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("json_schema", schema({"allOf": [{"type": "string"}, {"type": "integer"}]})),
        ("json_schema", schema({"type": "string", "pattern": "(?=a)b"})),
        ("json_schema", schema({"type": "integer", "minimum": 3, "maximum": 2})),
        ("json_schema", schema({"type": "string", "minLength": 5, "maxLength": 2})),
        ("json_schema", schema({"type": "array", "minItems": 3, "maxItems": 1})),
        ("json_schema", schema({"const": "\ud800"})),
        ("json_schema", json.dumps({"const": "\ud800"})),
        ("json_schema", "{"),
        ("regex", "("),
        ("grammar", "start: ("),
        ("grammar", 'root ::= "a'),
        ("grammar", "start: nowhere"),
        ("nonsense", "x"),
    ],
)
def test_a_constraint_that_doesnt_compile_is_an_error_not_free_text(compiler, kind, source):
    with pytest.raises(ConstraintError):
        compiler.compile(ConstraintSpec(kind, source))


IMPOSSIBLE = {
    "minimum": {"type": "integer", "minimum": 3, "maximum": 2},
    "exclusiveMinimum": {"type": "number", "exclusiveMinimum": 3, "exclusiveMaximum": 3},
    "anyOf": {"anyOf": [False, False]},
    "additionalProperties": {
        "type": "object",
        "properties": {"b": False},
        "required": ["b"],
        "additionalProperties": False,
    },
}


@pytest.mark.parametrize("keyword", IMPOSSIBLE)
@pytest.mark.parametrize("place", ["root", "property"])
def test_what_nothing_satisfies_is_refused_by_its_keyword(compiler, keyword, place):
    inside = {"type": "object", "properties": {"p": IMPOSSIBLE[keyword]}, "required": ["p"]}
    value = IMPOSSIBLE[keyword] if place == "root" else {**inside, "additionalProperties": False}
    with pytest.raises(ConstraintError, match=f"'{keyword}'.* at #{'' if place == 'root' else '/properties/p'}: "):
        compiler.compile(ConstraintSpec("json_schema", schema(value)))


def test_a_reference_that_leads_on_and_on_is_refused_by_its_keyword(compiler):
    chain = {f"d{index}": {"$ref": f"#/$defs/d{index + 1}"} for index in range(2000)}
    value = {"$ref": "#/$defs/d0", "$defs": {**chain, "d2000": {"type": "integer"}}}
    assert "'$ref'" in compiler.supports(ConstraintSpec("json_schema", schema(value))).reason


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("pattern", {"type": "string", "pattern": "("}),
        ("pattern", {"type": "string", "pattern": 5}),
        ("patternProperties", {"type": "object", "patternProperties": {"^a": {}, "^ab": {"type": "string"}}}),
        ("minLength", {"type": "string", "minLength": 5, "maxLength": 2}),
        ("multipleOf", {"type": "integer", "multipleOf": 0}),
        ("maximum", {"type": "integer", "maximum": 2**63 - 1}),
        ("const", {"const": "\u0000"}),
        ("allOf", {"allOf": [{"type": "string"}, {"type": "integer"}]}),
    ],
)
def test_llguidance_refuses_by_keyword_what_its_library_refuses_in_words(compiler_of, keyword, value):
    with pytest.raises(ConstraintError, match=f"'{keyword}'"):
        compiler_of("llguidance").compile(ConstraintSpec("json_schema", schema(value)))


def test_a_schema_is_bounded_in_size_and_nesting(compiler):
    deep = {"type": "integer"}
    for _ in range(100):
        deep = {"type": "array", "items": deep}

    assert "bytes" in compiler.supports(ConstraintSpec("json_schema", schema({"enum": ["x" * 5_000_000]}))).reason
    assert "deep" in compiler.supports(ConstraintSpec("json_schema", schema(deep))).reason
    assert "deep" in compiler.supports(ConstraintSpec("json_schema", "[" * 100_000)).reason


DOUBLING = {
    f"l{level}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/l{level - 1}"}] * 2} for level in range(1, 25)
}

HARD = {
    "catastrophic regex": {"type": "string", "pattern": "^(a+)+$"},
    "nested repeats": {"type": "string", "pattern": "^((a{1,1000}){1,1000}){1,1000}$"},
    "huge enum": {"enum": [f"value {index}" for index in range(20_000)]},
    "huge bounds": {"type": "string", "minLength": 10**6, "maxLength": 10**9},
    "many items": {"type": "array", "minItems": 10**6, "maxItems": 10**9},
    "unicode escapes": {
        "properties": {"\u2028": {"const": "\U0001f600"}},
        "additionalProperties": {"pattern": "\\u0041"},
    },
    "doubling": {"$defs": {"l0": {"type": "integer"}, **DOUBLING}, "$ref": "#/$defs/l24"},
    "product of choices": {"allOf": [{"anyOf": [{"required": [f"a{i}{j}"]} for j in range(8)]} for i in range(8)]},
}


@pytest.mark.parametrize("name", HARD)
def test_a_hard_schema_works_or_is_refused_in_bounded_time(compiler, tokenizer, name):
    spec = ConstraintSpec("json_schema", schema(HARD[name]))
    with contextlib.suppress(ConstraintError):
        assert compiler.compile(spec).compiled.open().mask().any()


@pytest.mark.parametrize(
    ("kind", "source", "reason"),
    [
        ("grammar", 'root ::= "ab" root', "Too many items"),
        ("json_schema", schema({"enum": [{"a": number} for number in range(3000)]}), "'enum' at #: .* 3000 items"),
        ("json_schema", schema({"type": "string", "pattern": "^a{1000000}$"}), "'pattern' at #: "),
    ],
)
def test_llguidance_refuses_at_once_what_meets_its_limits_on_the_way(compiler_of, kind, source, reason):
    with pytest.raises(ConstraintError, match=reason):
        compiler_of("llguidance").compile(ConstraintSpec(kind, source))


def test_xgrammar_finds_text_that_is_forced_without_end_in_pieces(compiler_of, tokenizer):
    matcher = compiler_of("xgrammar").compile(ConstraintSpec("grammar", 'root ::= "ab" root')).compiled.open()
    forced = tokenizer.decode(list(matcher.forced()))
    assert set(forced) == {"a", "b"}
    assert "aa" not in forced
    assert "bb" not in forced


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ("root ::= a\na ::= root", "nothing satisfies it"),
        ('root ::= ((((("a"{1,100}){1,100}){1,100}){1,100}){1,100})', "takes"),
    ],
)
def test_xgrammar_refuses_what_cant_be_followed(compiler_of, grammar, reason):
    with pytest.raises(ConstraintError, match=reason):
        compiler_of("xgrammar").compile(ConstraintSpec("grammar", grammar))


def test_an_xgrammar_row_whose_steps_grow_fails_alone(compiler_of, tokenizer, monkeypatch):
    matcher = compiler_of("xgrammar").compile(ConstraintSpec("grammar", 'root ::= "a"+')).compiled.open()
    [token_id] = tokenizer.encode("a")
    matcher.accept(token_id)
    monkeypatch.setattr("phyla_xgrammar.matcher.MOST_SECONDS", -1)
    with pytest.raises(ConstraintError, match="takes too long"):
        matcher.accept(token_id)


def test_xgrammar_finds_the_keys_that_a_schema_forces(compiler_of, tokenizer):
    schema = {"type": "object", "properties": {"größe": {"type": "integer"}}, "required": ["größe"]}
    source = json.dumps({**schema, "additionalProperties": False})
    matcher = compiler_of("xgrammar").compile(ConstraintSpec("json_schema", source, compact=True)).compiled.open()
    whole = tokenizer.encode('{"größe":')
    assert list(matcher.forced()) == whole[: len(matcher.forced())]
    assert len(matcher.forced()) >= len(whole) - 2
