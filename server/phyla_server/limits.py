"""Prompt and completion against the context limit."""

from __future__ import annotations

from phyla.errors import ContextOverflow
from phyla.request import Rendered


def cap_tokens(rendered: Rendered, max_tokens: int | None, context_limit: int) -> int | None:
    """The completion cap, cut to what the context leaves.

    Raises:
        ContextOverflow: the prompt leaves no room for one token.
    """
    room = context_limit - len(rendered.ids)
    if room < 1:
        raise ContextOverflow(
            f"the prompt has {len(rendered.ids)} tokens, which leaves no room in the context of {context_limit}"
        )
    return None if max_tokens is None else min(max_tokens, room)
