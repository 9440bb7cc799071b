"""`tools` and `tool_choice`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phyla_server.errors import bad_request
from phyla_server.fields import Fields

MAX_TOOLS = 512


def read_tools(fields: Fields) -> tuple[Mapping[str, Any], ...]:
    """The tools to offer: none if there are none or `tool_choice` is `none`.

    Raises:
        ApiError: 400 for a malformed tool, an unknown choice, or a choice that only a grammar could enforce.
    """
    offered = fields.array("tools") or ()
    if len(offered) > MAX_TOOLS:
        raise bad_request(f"tools must hold at most {MAX_TOOLS} tools", "tools")
    tools = tuple(_tool(index, one) for index, one in enumerate(offered))
    return () if _choice(fields.body.get("tool_choice"), tools) == "none" else tools


def _tool(index: int, tool: object) -> Mapping[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(tool, dict) or tool.get("type") != "function" or not isinstance(function, dict):
        raise bad_request(f"tools[{index}] must be {{'type': 'function', 'function': {{...}}}}", "tools")
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise bad_request(f"tools[{index}].function.name must be a non-empty string", "tools")
    if not isinstance(function.get("parameters"), dict | None):
        raise bad_request(f"tools[{index}].function.parameters must be an object", "tools")
    return tool


def _choice(choice: object, tools: tuple[Mapping[str, Any], ...]) -> str:
    if choice is None or choice in ("auto", "none"):
        return str(choice or "auto")
    if choice == "required":
        if not tools:
            raise bad_request("tool_choice 'required' needs tools", "tool_choice")
        raise bad_request("tool_choice 'required' can't be enforced by this server; use 'auto'", "tool_choice")
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise bad_request("tool_choice must be 'auto', 'none', 'required' or a named function", "tool_choice")
    names = [tool["function"]["name"] for tool in tools]
    if name not in names:
        raise bad_request(f"tool_choice names '{name[:64]}', which isn't among the tools", "tool_choice")
    raise bad_request(f"tool_choice '{name[:64]}' can't be enforced by this server; use 'auto'", "tool_choice")
