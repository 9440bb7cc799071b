"""Calls that are promised rather than hoped for: `tool_choice` `required` or named, and `strict` tools."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from phyla.errors import ConstraintError
from phyla.output import CalledTool, CallSyntax
from phyla.output.structure import JsonValue, Node, Repeat, Structure, Triggered, choice, sequence
from phyla.request import ConstraintSpec

from phyla_server.asked import UNENFORCEABLE, AskedConstraint
from phyla_server.errors import bad_request
from phyla_server.served import ServedModel
from phyla_server.tools import ToolUse

ANY_ARGUMENTS = '{"type": "object"}'


def with_calls(asked: AskedConstraint | None, use: ToolUse, model: ServedModel) -> AskedConstraint | None:
    """What the answer must look like, tools considered.

    A call that has to be made goes before a response format. Where both a JSON answer and calls are possible, either
    may come. Under `auto` alone only calls of strict tools are bound; the text around them is free.

    Raises:
        ApiError: 400 for a call that can't be promised.
    """
    if use.must_call:
        return _asked("tool_choice", _forced(use, _syntax(model, "tool_choice"), model))
    if not use.tools or (asked is None and not use.strict):
        return asked
    if asked is not None:
        if model.call_syntax is None or asked.spec.kind not in ("json_object", "json_schema"):
            return asked
        answer = JsonValue(_schema_of(asked.spec), asked.spec.compact)
        return _asked(asked.field, choice([answer, _calls(use, list(use.tools), model.call_syntax, model)]))
    syntax = _syntax(model, "tools")
    calls = choice([syntax.call(tool) for tool in _called(list(use.tools), syntax, model)])
    return _asked("tools", Triggered(syntax.trigger, calls))


def _asked(field: str, root: Node) -> AskedConstraint:
    return AskedConstraint(field, ConstraintSpec("structural_tag", Structure(root).to_source()))


def _syntax(model: ServedModel, field: str) -> CallSyntax:
    if model.call_syntax is None:
        raise bad_request(
            f"{field} asks for calls of a certain form, and how this model writes calls isn't known here; "
            f"use tool_choice 'auto' without 'strict'",
            field,
            UNENFORCEABLE,
        )
    return model.call_syntax


def _forced(use: ToolUse, syntax: CallSyntax, model: ServedModel) -> Node:
    return _calls(use, [tool for tool in use.tools if tool["function"]["name"] in use.must_call], syntax, model)


def _calls(use: ToolUse, tools: Sequence[Mapping[str, Any]], syntax: CallSyntax, model: ServedModel) -> Node:
    one = choice([syntax.call(tool) for tool in _called(tools, syntax, model)])
    most = syntax.most_calls if use.is_parallel else 1
    further = [Repeat(sequence(f"{syntax.between}{syntax.trigger}", one), 0, most - 1)] if most > 1 else []
    return sequence(syntax.trigger, one, *further)


def _called(tools: Sequence[Mapping[str, Any]], syntax: CallSyntax, model: ServedModel) -> list[CalledTool]:
    """The tools with the schemas to enforce: a strict one's as it is, another's as far as it can be."""
    called = []
    for tool in tools:
        function = tool["function"]
        exact = CalledTool(function["name"], json.dumps(function.get("parameters") or {"type": "object"}))
        if function.get("strict") is True:
            _check_strict(exact, syntax, model)
            called.append(exact)
        else:
            is_exact = _why_not(exact, syntax, model) is None
            called.append(exact if is_exact else CalledTool(exact.name, ANY_ARGUMENTS))
    return called


def _check_strict(tool: CalledTool, syntax: CallSyntax, model: ServedModel) -> None:
    reason = _why_not(tool, syntax, model)
    if reason is not None:
        raise bad_request(
            f"tool '{tool.name[:64]}' is strict, and its parameters can't be enforced: {reason}",
            "tools",
            UNENFORCEABLE,
        )


def _why_not(tool: CalledTool, syntax: CallSyntax, model: ServedModel) -> str | None:
    if model.constraints is None or not model.constraints.is_active:
        return None  # said once, of the whole constraint
    try:
        source = Structure(syntax.call(tool)).to_source()
    except ConstraintError as error:
        return str(error)
    return model.constraints.supports(ConstraintSpec("structural_tag", source)).reason


def _schema_of(spec: ConstraintSpec) -> str:
    return ANY_ARGUMENTS if spec.kind == "json_object" else spec.source
