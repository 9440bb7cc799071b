"""A prompt as the engine gets it: token ids and what the renderer knew about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class MediaSpan:
    """Placeholder tokens that stand for one picture or sound.

    The span is atomic: prefill never cuts it. `payload` holds host bytes; encoders run on the engine thread.
    """

    start: int
    num_tokens: int
    content_hash: str
    payload: bytes
    kind: str


@dataclass(frozen=True)
class Rendered:
    """One prompt, ready to be computed."""

    ids: tuple[int, ...]
    """Prompt token ids; never empty."""

    text: str | None = None
    """The rendered text the ids stand for, special tokens spelled out; None when the caller gave ids."""

    messages: tuple[Mapping[str, Any], ...] = ()
    """Normalised chat messages; empty for raw completions."""

    tools: tuple[Mapping[str, Any], ...] = ()
    """Offered function tools, as the client sent them."""

    template_args: Mapping[str, Any] = field(default_factory=dict)
    """Extra template variables, `enable_thinking` among them."""

    stable_boundary: int | None = None
    """Tokens at the front that the next turn of this conversation will render again, or None if unknown."""

    starts_in_reasoning: bool = False
    """The prompt ends inside an open reasoning span, so the first generated token is reasoning."""

    reasoning: tuple[str, str] | None = None
    """Spellings around reasoning, where an answer may begin with one; None where it must not, or nobody would read it
    as that."""

    media: tuple[MediaSpan, ...] = ()
