"""Each kind of constraint in the library's own language: Lark with JSON schemas inline."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import llguidance
from llguidance.gbnf_to_lark import gbnf_to_lark
from phyla.errors import ConstraintError
from phyla.output.structure import (
    Choice,
    InOrder,
    JsonValue,
    Literal,
    Node,
    Pattern,
    Repeat,
    Triggered,
    Until,
    parse_structure,
)
from phyla.request import ConstraintSpec

MAX_WHITESPACE = 8
"""Characters in a row: indentation fits, and a model that likes spaces has to go on."""

WHITESPACE = r"[\x20\x0A\x0D\x09]{1," + str(MAX_WHITESPACE) + "}"
ESCAPES = {"json_allowed_escapes": '"\\bfnrt'}
"""No \\u: a key spelt with it would pass for another one than it is, and slip past its own schema."""

SPACIOUS = {"whitespace_flexible": True, "whitespace_pattern": WHITESPACE, **ESCAPES}
COMPACT = {"whitespace_flexible": False, **ESCAPES}
ANY_OBJECT = {"type": "object"}
ANY_TEXT = "/(?s:.*)/"


def grammar_of(spec: ConstraintSpec, specials: Mapping[str, int]) -> str:
    """The grammar of a constraint.

    Args:
        spec: what the output must look like.
        specials: ids of special tokens by their spelling; where one stands in a structure's literal it means the token.

    Raises:
        ConstraintError: the source isn't well formed.
    """
    if spec.kind == "json_object":
        return _json(ANY_OBJECT, spec.compact)
    if spec.kind == "json_schema":
        return _json(json.loads(spec.source), spec.compact)
    if spec.kind == "regex":
        return f"start: /{_regex(spec.source)}/\n"
    if spec.kind == "choice":
        return "start: " + " | ".join(_quoted(option) for option in json.loads(spec.source)) + "\n"
    if spec.kind == "grammar":
        return _grammar(spec.source)
    return _Writer(specials).written(parse_structure(spec.source).root)


def _json(schema: Any, is_compact: bool) -> str:
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    return str(llguidance.LLMatcher.grammar_from_json_schema(json.dumps(_with_options(schema, is_compact))))


def _with_options(schema: Mapping[str, Any], is_compact: bool) -> dict[str, Any]:
    return {**schema, "x-guidance": COMPACT if is_compact else SPACIOUS}


def _regex(pattern: str) -> str:
    """For JSON Schema's `\\d` and `\\w`, which are ASCII."""
    return str(llguidance.regex_to_lark(pattern, "dw"))


def _grammar(source: str) -> str:
    """Lark as it is; EBNF in llama.cpp's dialect (`root ::= ...`) translated."""
    if "::=" not in source:
        return source
    try:
        return str(gbnf_to_lark(source))
    except Exception as error:
        raise ConstraintError(f"the EBNF grammar can't be read: {error}") from error


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


class _Writer:
    """Writes a structure as rules."""

    def __init__(self, specials: Mapping[str, int]) -> None:
        # Longest first: one spelling may begin another.
        self._specials = sorted(specials.items(), key=lambda one: -len(one[0]))
        self._rules: list[str] = []

    def written(self, root: Node) -> str:
        start = self._expression(root)
        return "\n".join([f"start: {start}", *self._rules, ""])

    def _expression(self, node: Node) -> str:
        match node:
            case Literal(text):
                return self._literal(text)
            case JsonValue(schema, compact):
                parsed = json.loads(schema)
                inline = _with_options({} if parsed is True else parsed, compact)
                return self._rule(f"%json {json.dumps(inline, ensure_ascii=False)}")
            case Until(stop):
                return self._until(stop)
            case Pattern(regex):
                return f"/{_regex(regex)}/"
            case InOrder(parts):
                return "(" + " ".join(self._expression(part) for part in parts) + ")"
            case Choice(options):
                return "(" + " | ".join(self._expression(option) for option in options) + ")"
            case Repeat(part, least, most):
                return f"{self._rule(self._expression(part))}{{{least},{'' if most is None else most}}}"
            case Triggered(trigger, part):
                return self._triggered(trigger, part)

    def _until(self, stop: str) -> str:
        """Text never matches a special token, so one needs no laziness to be found."""
        if any(spelling in stop for spelling, _ in self._specials):
            return f"({ANY_TEXT} {self._literal(stop)})"
        return self._rule(f"{ANY_TEXT} {_quoted(stop)}", attributes="[lazy]")

    def _triggered(self, trigger: str, part: Node) -> str:
        return f"({self._until(trigger)} {self._expression(part)})* {ANY_TEXT}"

    def _literal(self, text: str) -> str:
        if not text:
            return '""'
        for spelling, token_id in self._specials:
            before, found, rest = text.partition(spelling)
            if found:
                return " ".join(
                    [
                        *([self._literal(before)] if before else []),
                        f"<[{token_id}]>",
                        *([self._literal(rest)] if rest else []),
                    ]
                )
        return _quoted(text)

    def _rule(self, body: str, attributes: str = "") -> str:
        name = f"part_{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {body}")
        return name
