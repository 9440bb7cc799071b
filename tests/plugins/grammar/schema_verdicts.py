"""What an engine says of a value, token by token."""

from __future__ import annotations

import json
from typing import Any, Literal

from phyla.draft.compiling import ConstraintCompiler
from phyla.errors import ConstraintError
from phyla.request import ConstraintSpec
from phyla.sampling.token_mask import allows
from phyla.testing.scripted import CharacterTokenizer

Verdict = Literal["refused", "accepted", "rejected"]

TOKENIZER = CharacterTokenizer(
    pieces=['{"', '": ', '", "', '"}', "}}", "[[", "]]", "true", "false", "null", "12", "00", "foo", "ba", '\\"', "  "]
)
"""Bytes, and pieces that cross the borders of JSON's own tokens."""


def verdict(compiler: ConstraintCompiler, schema: Any, value: Any) -> Verdict:
    """`refused` if the engine doesn't take the schema; else whether the value's text may be the whole answer."""
    spec = ConstraintSpec("json_schema", json.dumps(schema, ensure_ascii=False))
    try:
        matcher = compiler.compile(spec).compiled.open()
    except ConstraintError:
        return "refused"
    try:
        for token_id in TOKENIZER.encode(json.dumps(value, ensure_ascii=False)):
            if not allows(matcher.mask(), token_id):
                return "rejected"
            matcher.accept(token_id)
        [end] = TOKENIZER.eos_ids
        return "accepted" if allows(matcher.mask(), end) else "rejected"
    except ConstraintError:
        return "rejected"
