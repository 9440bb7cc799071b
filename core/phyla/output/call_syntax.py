"""How a dialect writes tool calls: the other direction of its parser, for what must be a call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from phyla.output.structure import Node


@dataclass(frozen=True)
class CalledTool:
    """A tool as far as a call is concerned."""

    name: str
    parameters: str
    """JSON schema of its arguments, as text."""


@dataclass(frozen=True)
class CallSyntax:
    """A dialect's calls. Whatever it describes, the dialect's parser reads as that call."""

    trigger: str
    """Text that every call begins with and free text doesn't hold."""

    call: Callable[[CalledTool], Node]
    """All of a call after its trigger; a ConstraintError names a keyword that this spelling can't enforce."""

    between: str = "\n"
    """What the model writes between two calls."""

    most_calls: int = 8
    """In one answer that must consist of calls."""
