"""Nothing that a schema forbids gets through: the official suite, and schemas and values made up at random.

What an engine doesn't enforce it must refuse, so a case is right if the schema is refused, or the value is valid, or
the value's text is rejected. The schemas are made here: hypothesis-jsonschema (0.23.1, its last) reaches for internals
that hypothesis no longer has, and fails on arrays and objects.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from phyla.errors import ConstraintError
from phyla.request import ConstraintSpec
from phyla.sampling.token_mask import allows

from tests.plugins.grammar.keyword_support import PAGE, RESULT, counted, with_table
from tests.plugins.grammar.schema_suite import Case, suite
from tests.plugins.grammar.schema_verdicts import TOKENIZER, verdict

ENGINES = ("llguidance", "xgrammar")
FLOOR = {
    "llguidance": {
        *("type", "enum", "const", "properties", "required", "additionalProperties", "items", "prefixItems"),
        *("minItems", "maxItems", "anyOf", "ref", "pattern", "minLength", "maxLength", "minimum", "maximum"),
    },
    "xgrammar": {"type", "enum", "const", "anyOf", "items"},
}
"""Files of the suite of which an engine must take at least some schemas."""

TYPED = {
    "string": {"minLength", "maxLength", "pattern"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "object": {"properties", "required", "additionalProperties"},
}


@pytest.fixture(scope="session")
def cases(request: pytest.FixtureRequest) -> list[Case]:
    return suite(request.config.cache.mkdir("json-schema-suite"))


@pytest.mark.parametrize("engine", ENGINES)
def test_no_invalid_value_of_the_suite_is_accepted(compiler_of, cases, engine):
    compiler = compiler_of(engine, TOKENIZER)
    verdicts = [(case, verdict(compiler, case.schema, case.value)) for case in cases]

    assert [(case.what, case.value) for case, said in verdicts if said == "accepted" and not case.is_valid] == []
    taken = {case.file for case, said in verdicts if said == "accepted"}
    assert FLOOR[engine] <= taken
    shown, counts = json.loads(RESULT.read_text("utf-8"))["engines"][engine], counted(verdicts)
    # Another version of a library may take more or less; what it lets through is checked above all the same.
    assert counts == (shown["keywords"] if version(engine) == shown["version"] else counts)


def test_the_docs_show_what_the_suite_said():
    page = PAGE.read_text("utf-8")
    assert page == with_table(page, json.loads(RESULT.read_text("utf-8")))


@pytest.mark.parametrize("engine", ENGINES)
def test_no_invalid_value_is_accepted_where_the_type_is_said(compiler_of, cases, engine):
    compiler = compiler_of(engine, TOKENIZER)
    typed = [
        Case(one.file, one.what, with_type, one.value, is_valid(with_type, one.value))
        for one, with_type in ((case, typed_schema(case.schema)) for case in cases)
        if with_type is not None
    ]
    verdicts = [(case, verdict(compiler, case.schema, case.value)) for case in typed]

    assert [(case.what, case.value) for case, said in verdicts if said == "accepted" and not case.is_valid] == []
    assert sum(said == "accepted" for _, said in verdicts) > 30


def typed_schema(schema: Any) -> Any | None:
    """The schema with the type that its keywords are about, or None if it has one or they are about several."""
    if not isinstance(schema, dict) or "type" in schema or "$ref" in schema:
        return None
    names = [name for name, keywords in TYPED.items() if keywords & set(schema)]
    return {**schema, "type": names[0]} if len(names) == 1 else None


def is_valid(schema: Any, value: Any) -> bool:
    try:
        return bool(jsonschema.Draft202012Validator(schema).is_valid(value))
    except Exception:  # a reference to what isn't there
        return False


def schemas() -> st.SearchStrategy[Any]:
    """Random schemas of the keywords that have to be enforced."""
    small = st.integers(0, 4)
    ranges = st.tuples(st.integers(-20, 20), st.integers(0, 30)).map(
        lambda pair: {"minimum": pair[0], "maximum": pair[0] + pair[1]}
    )
    lengths = st.tuples(small, small).map(lambda pair: {"minLength": pair[0], "maxLength": pair[0] + pair[1]})
    leaves = st.one_of(
        st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": "integer"}, {"type": "number"}]),
        ranges.map(lambda bounds: {"type": "integer", **bounds}),
        ranges.map(lambda bounds: {"type": "number", **bounds}),
        lengths.map(lambda bounds: {"type": "string", **bounds}),
        st.sampled_from(["^a[bc]+$", "x", "^[0-9]{2,3}", "é$"]).map(lambda one: {"type": "string", "pattern": one}),
        st.lists(st.one_of(st.text(max_size=3), st.integers(), st.booleans()), min_size=1, max_size=3).map(
            lambda values: {"enum": values}
        ),
        st.one_of(st.text(max_size=3), st.integers(-5, 5)).map(lambda value: {"const": value}),
    )
    return st.recursive(leaves, _wider, max_leaves=5)


def _wider(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keys = st.sampled_from(["a", "b", "ab", 'q"', "é"])

    @st.composite
    def objects(draw: st.DrawFn) -> Any:
        properties = draw(st.dictionaries(keys, inner, min_size=1, max_size=3))
        required = draw(st.lists(st.sampled_from(sorted(properties)), unique=True))
        extra = draw(st.one_of(st.booleans(), inner))
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": extra}

    @st.composite
    def arrays(draw: st.DrawFn) -> Any:
        least = draw(st.integers(0, 2))
        bounds = {"minItems": least, "maxItems": least + draw(st.integers(0, 2))}
        return {"type": "array", "items": draw(inner), **bounds}

    return st.one_of(objects(), arrays(), st.lists(inner, min_size=1, max_size=3).map(lambda some: {"anyOf": some}))


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-50, 50), st.floats(-50, 50), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["a", "b", "ab", "c"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(schema=schemas(), value=JSON)
def test_what_is_accepted_is_valid(compiler_of, engine, schema, value):
    said = verdict(compiler_of(engine, TOKENIZER), schema, value)
    assert said != "accepted" or is_valid(schema, value)


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(schema=schemas(), seed=st.integers(0, 1 << 30))
@example(schema={"enum": [(1 << 53) + 1]}, seed=0)
def test_what_a_random_model_writes_is_valid(compiler_of, engine, schema, seed):
    spec = ConstraintSpec("json_schema", json.dumps(schema, ensure_ascii=False))
    try:
        matcher = compiler_of(engine, TOKENIZER).compile(spec).compiled.open()
    except ConstraintError:
        return
    text = written(matcher, seed, most_tokens=150)
    assert text is None or is_valid(schema, json.loads(text)), text


BOUNDED = {
    "flags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 4},
    "numbers": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 999}, "maxItems": 3},
    "names": {"type": "string", "maxLength": 12},
    "records": {
        "type": "object",
        "properties": {"kind": {"enum": ["cat", "dog"]}, "age": {"type": "integer", "minimum": 0, "maximum": 30}},
        "required": ["kind", "age"],
        "additionalProperties": False,
    },
    "choices": {
        "anyOf": [
            {"const": None},
            {"type": "array", "prefixItems": [{"type": "boolean"}, {"enum": ["é", 'a"b']}], "items": False},
        ]
    },
}
NOT_TAKEN = {("xgrammar", "names")}


def test_a_key_cant_be_respelt_to_slip_past_its_schema(compiler_of):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    matcher = compiler_of("llguidance", TOKENIZER).compile(ConstraintSpec("json_schema", json.dumps(schema)))
    assert not takes(matcher.compiled.open(), '{"\\u0061": "x"}')
    assert takes(matcher.compiled.open(), '{"b": "x", "a": 1}') or takes(matcher.compiled.open(), '{"a": 1, "b": "x"}')
    assert not compiler_of("xgrammar", TOKENIZER).supports(ConstraintSpec("json_schema", json.dumps(schema)))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("listed", [{"enum": [1, "a"]}, {"const": 1}, {"enum": [None, True, [], {}, 1.5]}])
@pytest.mark.parametrize("type_", ["string", ["string", "array"]])
def test_what_is_listed_is_still_of_the_type_beside_it(compiler_of, engine, listed, type_):
    schema = {"type": type_, **listed}
    values = listed.get("enum", [listed.get("const")])
    said = [(value, verdict(compiler_of(engine, TOKENIZER), schema, value)) for value in values]
    assert [value for value, one in said if one == "accepted" and not is_valid(schema, value)] == []


def takes(matcher, text):
    for token_id in TOKENIZER.encode(text):
        if not allows(matcher.mask(), token_id):
            return False
        matcher.accept(token_id)
    return True


@pytest.mark.parametrize(
    ("engine", "name"), [(engine, name) for engine in ENGINES for name in BOUNDED if (engine, name) not in NOT_TAKEN]
)
def test_answers_of_a_bounded_schema_end_by_it_and_are_valid(compiler_of, engine, name):
    spec = ConstraintSpec("json_schema", json.dumps(BOUNDED[name]))
    compiled = compiler_of(engine, TOKENIZER).compile(spec).compiled
    texts = [written(compiled.open(), seed, most_tokens=400) for seed in range(1000)]
    ended = [text for text in texts if text is not None]
    assert len(ended) >= 0.9 * len(texts)
    assert all(is_valid(BOUNDED[name], json.loads(text)) for text in ended)


def written(matcher, seed, most_tokens):
    """What a model of random tokens writes, or None where it doesn't end in time."""
    draw = np.random.default_rng(seed)
    [end] = TOKENIZER.eos_ids
    ids = []
    while len(ids) < most_tokens:
        if matcher.is_satisfied:
            return TOKENIZER.decode(ids)
        allowed = np.flatnonzero(np.unpackbits(matcher.mask().view(np.uint8), bitorder="little"))
        token_id = int(allowed[draw.integers(len(allowed))])
        if token_id == end:
            return TOKENIZER.decode(ids)
        matcher.accept(token_id)
        ids.append(token_id)
    return None
