"""Each kind of constraint in the library's terms."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import xgrammar
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
"""Characters in a row."""

ANY_OBJECT = '{"type": "object"}'


def grammar_of(spec: ConstraintSpec, specials: Mapping[str, int]) -> xgrammar.Grammar | str:
    """The grammar, or the text of a structural tag, which needs the tokenizer.

    Args:
        spec: what the output must look like.
        specials: ids of special tokens by their spelling.

    Raises:
        ConstraintError: the source isn't well formed.
    """
    try:
        if spec.kind in ("json_object", "json_schema"):
            source = ANY_OBJECT if spec.kind == "json_object" else spec.source
            return xgrammar.Grammar.from_json_schema(source, **_whitespace(spec.compact), strict_mode=False)
        if spec.kind == "regex":
            return xgrammar.Grammar.from_regex(spec.source)
        if spec.kind == "grammar":
            return xgrammar.Grammar.from_ebnf(spec.source)
        if spec.kind == "choice":
            options = [{"type": "const_string", "value": option} for option in json.loads(spec.source)]
            return _tag({"type": "or", "elements": options})
        return _tag(_Writer(specials).format(parse_structure(spec.source).root))
    except RuntimeError as error:
        raise ConstraintError(library_message(error)) from error


def library_message(error: Exception) -> str:
    """What the library says, without the place in its own source."""
    return str(error).strip().rpartition(".cc:")[2].partition(" ")[2] or str(error).strip()


def _tag(value: dict[str, Any]) -> str:
    return json.dumps({"type": "structural_tag", "format": value}, ensure_ascii=False)


def _whitespace(is_compact: bool) -> dict[str, Any]:
    if is_compact:
        return {"any_whitespace": False, "separators": (",", ":")}
    return {"any_whitespace": True, "max_whitespace_cnt": MAX_WHITESPACE}


class _Writer:
    """Writes a structure as the library's formats."""

    def __init__(self, specials: Mapping[str, int]) -> None:
        self._specials = sorted(specials.items(), key=lambda one: -len(one[0]))

    def format(self, node: Node) -> dict[str, Any]:
        match node:
            case Literal(text):
                return _sequence(self._literal(text))
            case JsonValue(schema, _):
                return {
                    "type": "json_schema",
                    "json_schema": json.loads(schema),
                    "max_whitespace_cnt": MAX_WHITESPACE,
                }
            case Until(stop):
                return self._until(stop)
            case Pattern(regex):
                return {"type": "regex", "pattern": regex}
            case InOrder(parts):
                return _sequence([self.format(part) for part in parts])
            case Choice(options):
                return {"type": "or", "elements": [self.format(option) for option in options]}
            case Repeat(part, least, most):
                bounds = {"min": least, "max": -1 if most is None else most}
                return {"type": "repeat", "content": self.format(part), **bounds}
            case Triggered(trigger, part):
                return self._triggered(trigger, part)

    def _until(self, stop: str) -> dict[str, Any]:
        if any(spelling in stop for spelling, _ in self._specials):
            return _sequence([{"type": "any_text"}, *self._literal(stop)])
        return {"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": stop}

    def _triggered(self, trigger: str, part: Node) -> dict[str, Any]:
        content = self.format(part)
        if any(spelling in trigger for spelling, _ in self._specials):
            call = _sequence([*self._literal(trigger), content])
            free = {"type": "any_text"}
            return _sequence([{"type": "star", "content": _sequence([free, call])}, free])
        return {
            "type": "triggered_tags",
            "triggers": [trigger],
            "tags": [{"type": "tag", "begin": trigger, "content": content, "end": ""}],
        }

    def _literal(self, text: str) -> list[dict[str, Any]]:
        if not text:
            return []
        for spelling, token_id in self._specials:
            before, found, rest = text.partition(spelling)
            if found:
                return [*self._literal(before), {"type": "token", "token": token_id}, *self._literal(rest)]
        return [{"type": "const_string", "value": text}]


def _sequence(formats: list[dict[str, Any]]) -> dict[str, Any]:
    if not formats:
        return {"type": "const_string", "value": ""}
    return formats[0] if len(formats) == 1 else {"type": "sequence", "elements": formats}
