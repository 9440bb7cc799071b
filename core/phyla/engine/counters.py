"""What the engine counted: an immutable value, replaced whole, so that any thread reads a consistent one."""

from __future__ import annotations

from typing import NamedTuple


class Counters(NamedTuple):
    """Since the start. A tuple: several are made in every step."""

    num_submitted: int = 0
    num_finished: int = 0
    num_failed: int = 0
    num_cancelled: int = 0
    num_prompt_tokens: int = 0
    """Of admitted requests, cached ones included."""

    num_cached_tokens: int = 0
    num_prefilled_tokens: int = 0
    num_emitted_tokens: int = 0
    num_steps: int = 0
    num_shared_steps: int = 0
    """Decode steps of two rows or more."""

    num_stacked_steps: int = 0
    """Decode steps whose rows sat in a stacked group."""

    num_drafted: int = 0
    """Of rows that have ended, as the next four."""

    num_drafts_accepted: int = 0
    num_draft_rounds: int = 0
    """Target calls of rows that a method drafted for, plain ones included."""

    num_draft_tokens: int = 0
    """Tokens of answers that came out of them."""

    num_undrafted_rows: int = 0
    """Rows that the method ran cold or not at all for."""

    active_rows: int = 0
    """Now."""

    waiting: int = 0
    """Requests in the queue, now."""

    projected_bytes: int = 0
    """What admitted requests may come to store, now."""

    def add(self, **changes: int) -> Counters:
        """A copy with these counts raised."""
        return self._replace(**{name: getattr(self, name) + more for name, more in changes.items()})
