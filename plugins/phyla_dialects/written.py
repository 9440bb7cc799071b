"""Calls as each dialect writes them, for answers that must be calls: what is written here its parser reads back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from phyla.errors import ConstraintError
from phyla.output import CalledTool, CallSyntax
from phyla.output.structure import Choice, JsonValue, Literal, Node, Pattern, Repeat, Until, choice, sequence

from phyla_dialects import gemma, glm, hermes, minicpm, mistral, qwen
from phyla_dialects.tools import is_text

TextValue = Callable[[], Node]
"""Free text up to and with whatever closes a value."""

STRING_KEYWORDS = ("pattern", "minLength", "maxLength", "format")
ANY_KEY = Pattern(r"[A-Za-z_][A-Za-z0-9_\-]{0,63}")


def hermes_syntax(template: str | None) -> CallSyntax:
    def call(tool: CalledTool) -> Node:
        return sequence("\n", _json_call(tool), f"\n{hermes.CLOSE}")

    return CallSyntax(hermes.OPEN, call)


def mistral_syntax(template: str | None) -> CallSyntax:
    def named(tool: CalledTool) -> Node:
        return sequence(f"{tool.name}{mistral.ARGS}", JsonValue(tool.parameters))

    def array(tool: CalledTool) -> Node:
        return sequence("[", _json_call(tool), "]")

    if template is not None and mistral.ARGS in template:
        return CallSyntax(mistral.OPEN, named, between="")
    return CallSyntax(mistral.OPEN, array, most_calls=1)


def qwen_syntax(template: str | None) -> CallSyntax:
    close = f"\n{qwen.END_PARAMETER}\n"

    def call(tool: CalledTool) -> Node:
        parameters = _raw_parameters(tool, (qwen.PARAMETER, ">\n"), close, lambda: Until(close))
        return sequence(f"\n{qwen.FUNCTION}{tool.name}>\n", *parameters, f"{qwen.END_FUNCTION}\n{qwen.CLOSE}")

    return CallSyntax(qwen.OPEN, call)


def glm_syntax(template: str | None) -> CallSyntax:
    opening = (glm.KEY, f"{glm.END_KEY}\n{glm.VALUE}")

    def call(tool: CalledTool) -> Node:
        parameters = _raw_parameters(
            tool, opening, f"{glm.END_VALUE}\n", lambda: sequence(Until(glm.END_VALUE), Literal("\n"))
        )
        return sequence(f"{tool.name}\n", *parameters, glm.CLOSE)

    return CallSyntax(glm.OPEN, call)


def minicpm_syntax(template: str | None) -> CallSyntax:
    # Text as it is, without the characters that would need escapes.
    text = Pattern(r"[^<&]*")

    def call(tool: CalledTool) -> Node:
        parameters = _raw_parameters(
            tool, (minicpm.PARAM, '">'), minicpm.END_PARAM, lambda: sequence(text, minicpm.END_PARAM)
        )
        return sequence(f'{tool.name}">', *parameters, minicpm.END_FUNCTION)

    return CallSyntax(minicpm.FUNCTION, call)


def gemma_syntax(template: str | None) -> CallSyntax:
    def call(tool: CalledTool) -> Node:
        root = _schema(tool)
        return sequence(f"call:{tool.name}", _Gemma(root).value({"type": "object", **root}), gemma.CLOSE)

    return CallSyntax(gemma.OPEN, call, between="")


def _json_call(tool: CalledTool) -> Node:
    name = json.dumps(tool.name, ensure_ascii=False)
    return sequence(f'{{"name": {name}, "arguments": ', JsonValue(tool.parameters), "}")


def _schema(tool: CalledTool) -> dict[str, Any]:
    schema = json.loads(tool.parameters)
    assert isinstance(schema, dict), "parameters are an object's schema"
    return schema


def _raw_parameters(tool: CalledTool, opening: tuple[str, str], close: str, text: TextValue) -> list[Node]:
    """Parameters one after the other, in the schema's order; those that aren't required may be left out."""
    root = _schema(tool)
    properties: Mapping[str, Any] = root.get("properties") or {}
    if not properties:
        if root.get("additionalProperties") is False:
            return []
        return [Repeat(sequence(opening[0], ANY_KEY, opening[1], text()))]
    _refuse_other_keywords(root)
    required = root.get("required", ())
    written: list[Node] = []
    for key, schema in properties.items():
        one = sequence(f"{opening[0]}{key}{opening[1]}", _raw_value(schema, root, close, text))
        written.append(one if key in required else Repeat(one, 0, 1))
    return written


def _raw_value(schema: Any, root: Mapping[str, Any], close: str, text: TextValue) -> Node:
    if not isinstance(schema, dict) or not is_text(schema):
        return sequence(JsonValue(json.dumps(_rooted(schema, root))), close)
    options = _text_options(schema)
    if options is not None:
        return sequence(choice([Literal(option) for option in options]), close)
    _refuse_string_keywords(schema)
    return text()


def _text_options(schema: Mapping[str, Any]) -> list[str] | None:
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    return None if listed is None else [one for one in listed if isinstance(one, str)]


def _rooted(schema: Any, root: Mapping[str, Any]) -> Any:
    """A part of a schema with the definitions that its references name."""
    definitions = {name: root[name] for name in ("$defs", "definitions") if name in root}
    return {**definitions, **schema} if isinstance(schema, dict) else schema


def _refuse_string_keywords(schema: Mapping[str, Any]) -> None:
    for keyword in STRING_KEYWORDS:
        if any(keyword in one for one in (schema, *schema.get("anyOf", ()), *schema.get("oneOf", ()))):
            raise ConstraintError(f"keyword '{keyword}' can't be enforced where this model writes strings as raw text.")


def _refuse_other_keywords(schema: Mapping[str, Any]) -> None:
    """Arguments are written one by one, so nothing may be asked of all of them together."""
    known = {"type", "properties", "required", "additionalProperties", "$defs", "definitions", "title", "description"}
    for keyword in schema:
        if keyword not in known and not keyword.startswith("$"):
            raise ConstraintError(f"keyword '{keyword}' can't be enforced where arguments are written one by one.")


class _Gemma:
    """Values in Gemma's notation, by their schema."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def value(self, schema: Any) -> Node:
        if not isinstance(schema, dict):
            schema = {}
        if "$ref" in schema:
            raise ConstraintError("keyword '$ref' can't be enforced in this model's notation of arguments.")
        if "anyOf" in schema:
            return choice([self.value(one) for one in schema["anyOf"]])
        options = [schema["const"]] if "const" in schema else schema.get("enum")
        if options is not None:
            return choice([self._constant(one) for one in options])
        types = schema.get("type", ("string", "number", "boolean", "null"))
        return choice([self._typed(one, schema) for one in ([types] if isinstance(types, str) else types)])

    def _typed(self, kind: str, schema: Mapping[str, Any]) -> Node:
        if kind == "string":
            _refuse_string_keywords(schema)
            return sequence(gemma.QUOTE, Until(gemma.QUOTE))
        if kind == "array":
            return self._array(schema)
        if kind == "object":
            return self._object(schema)
        return JsonValue(json.dumps({**schema, "type": kind}), compact=True)

    def _constant(self, value: Any) -> Node:
        if isinstance(value, str):
            return Literal(f"{gemma.QUOTE}{value}{gemma.QUOTE}")
        return JsonValue(json.dumps({"const": value}), compact=True)

    def _array(self, schema: Mapping[str, Any]) -> Node:
        for keyword in ("prefixItems", "uniqueItems", "contains"):
            if keyword in schema:
                raise ConstraintError(f"keyword '{keyword}' can't be enforced in this model's notation of arguments.")
        item = self.value(schema.get("items", {}))
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        rest = Repeat(sequence(",", item), max(least - 1, 0), None if most is None else max(most - 1, 0))
        if most == 0:
            return Literal("[]")
        filled = sequence("[", item, rest, "]")
        return filled if least else Choice((Literal("[]"), filled))

    def _object(self, schema: Mapping[str, Any]) -> Node:
        _refuse_other_keywords(schema)
        properties: Mapping[str, Any] = schema.get("properties") or {}
        if not properties:
            if schema.get("additionalProperties") is False:
                return Literal("{}")
            pair = sequence(ANY_KEY, ":", self.value({}))
            return Choice((Literal("{}"), sequence("{", pair, Repeat(sequence(",", pair)), "}")))
        required = [key for key in properties if key in schema.get("required", ())]
        pairs = {key: sequence(f"{key}:", self.value(value)) for key, value in properties.items()}
        optional = [pairs[key] for key in properties if key not in required]
        return sequence("{", self._pairs([pairs[key] for key in required], optional), "}")

    def _pairs(self, required: Sequence[Node], optional: Sequence[Node]) -> Node:
        """Required ones first: which comma belongs to whom is then known."""
        if required:
            rest = [*(sequence(",", one) for one in required[1:]), *_each_optional(optional)]
            return sequence(required[0], *rest)
        begun: list[Node] = [
            sequence(first, *_each_optional(optional[index + 1 :])) for index, first in enumerate(optional)
        ]
        return choice([Literal(""), *begun])


def _each_optional(nodes: Sequence[Node]) -> list[Node]:
    return [Repeat(sequence(",", one), 0, 1) for one in nodes]
