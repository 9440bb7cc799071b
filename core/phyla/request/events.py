"""What the engine says about a request, in order: Started, Token..., then Finished or Failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True)
class Started:
    """The request left the queue."""

    request_id: str
    num_prompt_tokens: int
    num_cached_tokens: int = 0


@dataclass(frozen=True)
class TokenLogprobs:
    """Natural-log probabilities after processors, before truncation and temperature."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """(id, logprob), most likely first, ties by lower id."""


@dataclass(frozen=True)
class Token:
    """One emitted token.

    `text` is what became decodable with it: empty while a character is incomplete. While a stop string may be starting
    its tokens are held back whole; the ones of a stop string that fired come with the text before it, or none.
    Special tokens carry their spelling with `special` set: parsers match them, text encoders drop them.
    """

    request_id: str
    token_id: int
    text: str
    special: bool = False
    logprobs: TokenLogprobs | None = None
    sample: int = 0


@dataclass(frozen=True)
class Usage:
    """Counts of one finished request."""

    num_prompt_tokens: int
    num_completion_tokens: int
    num_cached_tokens: int = 0
    lane: str = "serial"
    """`serial` if no step was shared, else `batched`; `+spec` when a draft method ran."""

    speculation: Mapping[str, Any] | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)
    """More JSON values by name. Numbers in them are counts, which add up over the choices of an answer."""

    prompt_seconds: float = 0.0
    decode_seconds: float = 0.0


@dataclass(frozen=True)
class Finished:
    """The last event of a sample that ended as asked. `text` is what was still held back and is now certain."""

    request_id: str
    reason: FinishReason
    usage: Usage
    text: str = ""
    stop_string: str | None = None
    """The stop string that fired, if one did."""

    sample: int = 0


@dataclass(frozen=True)
class Failed:
    """The last event of a request that could not be served."""

    request_id: str
    error: str
    """A message for the client: no stack, no path, no prompt."""

    kind: str
    """Name of the error class in `phyla.errors`."""

    sample: int = 0


EngineEvent = Started | Token | Finished | Failed
