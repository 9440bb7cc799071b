"""The contract of constraint engines, over a schema, a regular expression and a structure."""

from __future__ import annotations

import json
from typing import ClassVar

import pytest
from phyla.draft.constraint import CompiledConstraint
from phyla.output.structure import JsonValue, Structure, Until, sequence
from phyla.request import ConstraintSpec
from phyla.testing.constraint import ConstraintContract

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "size": {"type": "integer"}},
        "required": ["name", "size"],
        "additionalProperties": False,
    }
)
CALL = Structure(sequence("<call>", JsonValue(SCHEMA), "</call><p>", Until("</p>"))).to_source()

CASES = {
    "schema": (ConstraintSpec("json_schema", SCHEMA), ['{"name": "naïve 🙂", "size": 30}', '{"name":"\\"","size":-1}']),
    "compact": (ConstraintSpec("json_schema", SCHEMA, compact=True), ['{"name":"a","size":3}']),
    "object": (ConstraintSpec("json_object", "{}"), ['{"a": [1, {"b": null}]}', "{}"]),
    "regex": (ConstraintSpec("regex", r"\d{2}-(x|yy)"), ["12-yy", "90-x"]),
    "choice": (ConstraintSpec("choice", '["yes", "no way", "北京", "a\\nb\\"c"]'), ["yes", "北京", 'a\nb"c']),
    "ebnf": (ConstraintSpec("grammar", 'root ::= "a" [0-9] b\nb ::= "b" | "c"'), ["a1b", "a2c"]),
    "lark": (ConstraintSpec("grammar", 'start: "a" /[0-9]/ b\nb: "b" | "c"'), ["a1b", "a2c"]),
    "structure": (
        ConstraintSpec("structural_tag", CALL),
        ['<call>{"name": "n", "size": 1}</call><p>any < text\n</p>'],
    ),
}


class EngineContract(ConstraintContract):
    """The contract over one case of one engine."""

    engine: ClassVar[str]

    @pytest.fixture
    def compiled(self, case: str, compiler_of) -> CompiledConstraint:
        return compiler_of(self.engine).compile(CASES[case][0]).compiled

    @pytest.fixture
    def vocab_size(self, tokenizer) -> int:
        return tokenizer.vocab_size

    @pytest.fixture
    def sentences(self, case: str, tokenizer) -> list[list[int]]:
        return [tokenizer.encode(text) for text in CASES[case][1]]

    @pytest.fixture
    def eos_ids(self, tokenizer) -> frozenset[int]:
        return tokenizer.eos_ids


@pytest.mark.parametrize("case", CASES)
class TestLlguidance(EngineContract):
    engine = "llguidance"


@pytest.mark.parametrize("case", [case for case in CASES if case != "lark"])
class TestXgrammar(EngineContract):
    engine = "xgrammar"


def test_xgrammar_leaves_lark_to_others(compiler_of):
    assert "EBNF" in compiler_of("xgrammar").supports(CASES["lark"][0]).reason
