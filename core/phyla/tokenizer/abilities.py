"""What a chat template can render, found out by asking it, and messages fitted to that.

Policy: whatever the template renders without loss stays as it is. Where it raises, or leaves a message out:
several system messages at the start become one; a later one goes in front of the user message that follows; a template
without a system role gets the system text in front of the first user message; user messages in a row become one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise, takewhile
from typing import Any

from phyla.errors import TemplateError
from phyla.tokenizer.messages import Message
from phyla.tokenizer.sandbox import RenderedText

SEPARATOR = "\n\n"
_PROBE_TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "probe_epsilon",
        "description": "A probe.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "A city."}},
            "required": ["city"],
        },
    },
}
_PROBES = ("probe-alpha", "probe-beta", "probe-gamma", "probe-delta")


class TemplateAbilities:
    """Each ability is probed once, when messages first need it."""

    def __init__(self, render: Callable[[Sequence[Message], Sequence[Mapping[str, Any]]], RenderedText]) -> None:
        """Ask nothing yet.

        Args:
            render: `(messages, tools)`: one rendering, or why there is none.
        """
        self._render = render

    def probe(self) -> None:
        """Ask for everything now, so that no messages wait for it."""
        _ = (
            self.wants_parts,
            self.renders_system,
            self.renders_several_systems,
            self.renders_late_system,
            self.renders_users_in_a_row,
            self.renders_tools,
        )

    def fitted(self, messages: Sequence[Message]) -> list[Message]:
        """The messages as this template can render them; doesn't modify its argument."""
        fitted = [dict(message) for message in messages]
        num_leading = len(list(takewhile(lambda message: message["role"] == "system", fitted)))
        if num_leading > 1 and not self.renders_several_systems:
            merged = SEPARATOR.join(message["content"] for message in fitted[:num_leading])
            fitted[:num_leading] = [{**fitted[0], "content": merged}]
            num_leading = 1
        if any(message["role"] == "system" for message in fitted[num_leading:]) and not self.renders_late_system:
            fitted[num_leading:] = _folded_forward(fitted[num_leading:])
        if num_leading and not self.renders_system:
            fitted = _folded_forward(fitted)
        if _has_users_in_a_row(fitted) and not self.renders_users_in_a_row:
            fitted = _merged_users(fitted)
        return [self._with_parts(message) for message in fitted] if self.wants_parts else fitted

    @cached_property
    def renders_system(self) -> bool:
        return self._renders("system", "user")

    @cached_property
    def renders_several_systems(self) -> bool:
        return self._renders("system", "system", "user")

    @cached_property
    def renders_late_system(self) -> bool:
        return self._renders("user", "assistant", "system", "user")

    @cached_property
    def renders_users_in_a_row(self) -> bool:
        return self._renders("user", "user")

    @cached_property
    def renders_tools(self) -> bool:
        """Whether a model learns of the tools that it is offered: many templates leave them out without a word."""
        user = _message("user", _PROBES[0])
        return any(self._shows_tool(messages) for messages in ([user], [self._with_parts(user)]))

    @cached_property
    def wants_parts(self) -> bool:
        """Content must be a list of parts: plain text is lost on this template."""
        return not self._renders("user") and self._complete([self._with_parts(_message("user", _PROBES[0]))], 1)

    def _renders(self, *roles: str) -> bool:
        messages = [_message(role, probe) for role, probe in zip(roles, _PROBES, strict=False)]
        return self._complete(messages, len(roles))

    def _complete(self, messages: Sequence[Message], num_probes: int) -> bool:
        text = self._render(messages, ()).text
        return text is not None and all(probe in text for probe in _PROBES[:num_probes])

    def _shows_tool(self, messages: Sequence[Message]) -> bool:
        try:
            text = self._render(messages, [_PROBE_TOOL]).text
        except TemplateError:  # no rendering at all, of anything: chats will say why
            return False
        return text is not None and _PROBE_TOOL["function"]["name"] in text

    @staticmethod
    def _with_parts(message: Mapping[str, Any]) -> Message:
        return {**message, "content": [{"type": "text", "text": message["content"]}]}


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _folded_forward(messages: Sequence[Message]) -> list[Message]:
    """System texts go in front of the next user message; with none left they become one."""
    folded: list[Message] = []
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "system":
            waiting.append(message["content"])
        elif message["role"] == "user" and waiting:
            folded.append({**message, "content": SEPARATOR.join([*waiting, message["content"]])})
            waiting = []
        else:
            folded.append(message)
    return [*folded, _message("user", SEPARATOR.join(waiting))] if waiting else folded


def _has_users_in_a_row(messages: Sequence[Message]) -> bool:
    roles = [message["role"] for message in messages]
    return any(first == second == "user" for first, second in pairwise(roles))


def _merged_users(messages: Sequence[Message]) -> list[Message]:
    merged: list[Message] = []
    for message in messages:
        if merged and merged[-1]["role"] == message["role"] == "user":
            merged[-1] = {**merged[-1], "content": SEPARATOR.join([merged[-1]["content"], message["content"]])}
        else:
            merged.append(message)
    return merged
