"""Fill: tokens that a template or the prompt makes certain or likely, proposed on the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phyla.draft.span import SpanSource
    from phyla.kv.scheme import Tier
    from phyla.request import Request


@dataclass(frozen=True)
class FillSource:
    """A per-row source of spans, as `phyla_proposers` gives it."""

    name: str
    asserted: bool
    """Its spans enter as context without a check; such requests can't have log-probabilities."""

    open: Callable[[Request], SpanSource | None]
    """The row's source, or None when it has nothing to offer for this request."""

    tier: Tier = "lab"
    description: str = ""
