"""The `usage` block: OpenAI's counts, and what the engine says about how they came about."""

from __future__ import annotations

from typing import Any

from phyla.request import Usage


class UsageTotal:
    """Adds up the samples of one client's requests. The prompt of samples that share a prefill counts once."""

    def __init__(self) -> None:
        self._by_request: dict[str, Usage] = {}
        self._num_completion_tokens = 0
        self._num_reasoning_tokens: int | None = None

    def add(self, request_id: str, usage: Usage, num_reasoning_tokens: int | None = None) -> None:
        """Count one sample.

        Args:
            request_id: whose sample it is.
            usage: what the engine counted.
            num_reasoning_tokens: how many of the sample's tokens were reasoning; None where nobody looks.
        """
        self._by_request[request_id] = usage
        self._num_completion_tokens += usage.num_completion_tokens
        if num_reasoning_tokens is not None:
            self._num_reasoning_tokens = (self._num_reasoning_tokens or 0) + num_reasoning_tokens

    @property
    def num_completion_tokens(self) -> int:
        return self._num_completion_tokens

    @property
    def num_prompt_tokens(self) -> int:
        return sum(usage.num_prompt_tokens for usage in self._by_request.values())

    def block(self) -> dict[str, Any]:
        usages = list(self._by_request.values())
        num_prompt_tokens = self.num_prompt_tokens
        block: dict[str, Any] = {
            "prompt_tokens": num_prompt_tokens,
            "completion_tokens": self._num_completion_tokens,
            "total_tokens": num_prompt_tokens + self._num_completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(usage.num_cached_tokens for usage in usages)},
        }
        if self._num_reasoning_tokens is not None:
            block["completion_tokens_details"] = {"reasoning_tokens": self._num_reasoning_tokens}
        if usages:
            block["lane"] = usages[-1].lane
            block |= usages[-1].extras
            if usages[-1].speculation is not None:
                block["speculation"] = dict(usages[-1].speculation)
        return block
