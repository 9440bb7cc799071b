"""The tools a client offered, and how a parameter's text becomes JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phyla_dialects.json_text import read_json, write_json

_TEXT_TYPES = frozenset({"string", "null"})


class OfferedTools:
    """Names and parameter schemas of the offered functions."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        functions = [tool.get("function", tool) for tool in tools]
        self._parameters: dict[str, Mapping[str, Any]] = {
            str(function.get("name")): _object(function.get("parameters")) for function in functions
        }

    def __contains__(self, name: str) -> bool:
        return name in self._parameters

    def is_text(self, name: str, key: str) -> bool:
        """Whether the schema takes nothing but a string (or null) there, so that `2025` stays text."""
        return is_text(_object(_object(_object(self._parameters.get(name)).get("properties")).get(key)))

    def json_value(self, name: str, key: str, text: str) -> str:
        """The JSON of one parameter given as raw text: a string where the schema says so, else JSON if it is any."""
        if self.is_text(name, key):
            return write_json(text)
        return write_json(_decoded(text.strip()))


def is_text(schema: Mapping[str, Any]) -> bool:
    """Whether a schema takes nothing but a string (or null)."""
    return bool(types := _types(schema)) and types <= _TEXT_TYPES


def _decoded(text: str) -> Any:
    # Models that write Python's literals mean JSON's.
    for spelling, value in (("True", True), ("False", False), ("None", None)):
        if text == spelling:
            return value
    try:
        return read_json(text)
    except ValueError:
        return text


def _types(schema: Mapping[str, Any]) -> set[str]:
    declared = schema.get("type")
    if isinstance(declared, str):
        return {declared}
    if isinstance(declared, list):
        return {str(one) for one in declared}
    if "enum" in schema:
        return {"string"} if all(isinstance(one, str) for one in schema["enum"]) else {"any"}
    branches = schema.get("anyOf") or schema.get("oneOf") or ()
    return set().union(*(_types(_object(branch)) or {"any"} for branch in branches)) if branches else set()


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
