"""`tools` and `tool_choice`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from phyla_server.errors import bad_request
from phyla_server.fields import Fields

MAX_TOOLS = 512


@dataclass(frozen=True)
class ToolUse:
    """The tools of a request, and what it wants done with them."""

    tools: tuple[Mapping[str, Any], ...] = ()
    """To offer: none where `tool_choice` is `none`."""

    must_call: tuple[str, ...] = ()
    """Names of which at least one has to be called; empty leaves it to the model."""

    is_parallel: bool = True
    """Whether there may be several calls in one answer."""

    @property
    def strict(self) -> tuple[str, ...]:
        """Names of tools whose calls must keep to their schema."""
        return tuple(tool["function"]["name"] for tool in self.tools if tool["function"].get("strict") is True)


def read_tools(fields: Fields) -> ToolUse:
    """`tools`, `tool_choice` and `parallel_tool_calls`.

    Raises:
        ApiError: 400 for a malformed tool or an unknown choice.
    """
    for name in ("functions", "function_call"):
        if fields.body.get(name):
            raise bad_request(f"{name} is the form that tools had before: send tools and tool_choice", name)
    offered = fields.array("tools") or ()
    if len(offered) > MAX_TOOLS:
        raise bad_request(f"tools must hold at most {MAX_TOOLS} tools", "tools")
    tools = tuple(_tool(index, one) for index, one in enumerate(offered))
    choice = fields.body.get("tool_choice")
    if choice == "none":
        return ToolUse()
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        tools, choice = _allowed(choice.get("allowed_tools"), tools)
    must_call = _must_call(choice, [tool["function"]["name"] for tool in tools])
    is_parallel = fields.flag("parallel_tool_calls") is not False and not isinstance(choice, dict)
    return ToolUse(tools, must_call, is_parallel)


def _tool(index: int, tool: object) -> Mapping[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(tool, dict) or tool.get("type") != "function" or not isinstance(function, dict):
        raise bad_request(f"tools[{index}] must be {{'type': 'function', 'function': {{...}}}}", "tools")
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise bad_request(f"tools[{index}].function.name must be a non-empty string", "tools")
    if not isinstance(function.get("parameters"), dict | None):
        raise bad_request(f"tools[{index}].function.parameters must be an object", "tools")
    return tool


def _allowed(
    allowed: object, tools: Sequence[Mapping[str, Any]]
) -> tuple[tuple[Mapping[str, Any], ...], Literal["auto", "required"]]:
    """Those of the tools that a choice of `allowed_tools` leaves, and whether one of them must be called."""
    mode = allowed.get("mode") if isinstance(allowed, dict) else None
    listed = allowed.get("tools") if isinstance(allowed, dict) else None
    if mode not in ("auto", "required") or not isinstance(listed, list) or not listed:
        raise bad_request("tool_choice.allowed_tools needs tools, and 'auto' or 'required' as its mode", "tool_choice")
    by_name = {tool["function"]["name"]: tool for tool in tools}
    names = [_must_call(one, list(by_name))[0] if isinstance(one, dict) else None for one in listed]
    if None in names:
        raise bad_request("tool_choice.allowed_tools.tools must be named functions", "tool_choice")
    return tuple(tool for name, tool in by_name.items() if name in names), mode


def _must_call(choice: object, names: Sequence[str]) -> tuple[str, ...]:
    if choice is None or choice == "auto":
        return ()
    if choice == "required":
        if not names:
            raise bad_request("tool_choice 'required' needs tools", "tool_choice")
        return tuple(names)
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise bad_request("tool_choice must be 'auto', 'none', 'required' or a named function", "tool_choice")
    if name not in names:
        raise bad_request(f"tool_choice names '{name[:64]}', which isn't among the tools", "tool_choice")
    return (name,)
