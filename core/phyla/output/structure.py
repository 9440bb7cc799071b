"""Text with structure, as a constraint: what dialects say about how a call is spelt, and engines enforce.

A tree of few node kinds. It travels as the JSON source of a `structural_tag` constraint.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Literal:
    """Exactly this text; a special token's spelling stands for that token."""

    text: str


@dataclass(frozen=True)
class JsonValue:
    """A JSON value that satisfies a schema, which is its own root: references in it are local to it."""

    schema: str
    """As JSON text."""

    compact: bool = False


@dataclass(frozen=True)
class Until:
    """Any text up to the first `stop`, which is part of it. Special tokens are no text."""

    stop: str


@dataclass(frozen=True)
class Pattern:
    """Text that a regular expression matches whole."""

    regex: str


@dataclass(frozen=True)
class InOrder:
    """One after the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Choice:
    """One of them."""

    options: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    """So many times; no `most` is any number."""

    part: Node
    least: int = 0
    most: int | None = None


@dataclass(frozen=True)
class Triggered:
    """Free text in which `trigger` may occur, and wherever it does, `part` follows."""

    trigger: str
    part: Node


Node = Literal | JsonValue | Until | Pattern | InOrder | Choice | Repeat | Triggered


@dataclass(frozen=True)
class Structure:
    """A whole answer."""

    root: Node

    def to_source(self) -> str:
        """The source of a `structural_tag` constraint."""
        return json.dumps(_dumped(self.root), ensure_ascii=False)

    def schemas(self) -> Iterator[str]:
        """Every JSON schema in it."""
        return (node.schema for node in _nodes(self.root) if isinstance(node, JsonValue))


def sequence(*parts: Node | str) -> Node:
    """Parts one after the other; a string is a literal."""
    return InOrder(tuple(Literal(part) if isinstance(part, str) else part for part in parts))


def choice(options: Sequence[Node]) -> Node:
    """One of several, or the only one."""
    return options[0] if len(options) == 1 else Choice(tuple(options))


def parse_structure(source: str) -> Structure:
    """The tree that `to_source` wrote.

    Raises:
        ValueError, KeyError, TypeError: it didn't.
    """
    return Structure(_parsed(json.loads(source)))


def _dumped(node: Node) -> dict[str, Any]:
    match node:
        case Literal(text):
            return {"literal": text}
        case JsonValue(schema, compact):
            return {"json": json.loads(schema), "compact": compact}
        case Until(stop):
            return {"until": stop}
        case Pattern(regex):
            return {"pattern": regex}
        case InOrder(parts):
            return {"sequence": [_dumped(part) for part in parts]}
        case Choice(options):
            return {"choice": [_dumped(option) for option in options]}
        case Repeat(part, least, most):
            return {"repeat": _dumped(part), "least": least, "most": most}
        case Triggered(trigger, part):
            return {"triggered": _dumped(part), "trigger": trigger}


def _parsed(value: dict[str, Any]) -> Node:
    match value:
        case {"literal": str(text)}:
            return Literal(text)
        case {"json": schema, "compact": bool(compact)}:
            return JsonValue(json.dumps(schema, ensure_ascii=False), compact)
        case {"until": str(stop)}:
            return Until(stop)
        case {"pattern": str(regex)}:
            return Pattern(regex)
        case {"sequence": list(parts)}:
            return InOrder(tuple(_parsed(part) for part in parts))
        case {"choice": list(options)}:
            return Choice(tuple(_parsed(option) for option in options))
        case {"repeat": dict(part), "least": int(least), "most": most}:
            return Repeat(_parsed(part), least, most)
        case {"triggered": dict(part), "trigger": str(trigger)}:
            return Triggered(trigger, _parsed(part))
    raise ValueError(f"no such node: {json.dumps(value)[:100]}")


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    match node:
        case InOrder(below) | Choice(below):
            for one in below:
                yield from _nodes(one)
        case Repeat(part) | Triggered(_, part):
            yield from _nodes(part)
