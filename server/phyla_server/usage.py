"""The `usage` block: OpenAI's counts, and what the engine says about how they came about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from phyla.request import Usage


class UsageTotal:
    """Adds up the samples of one client's requests. The prompt of samples that share a prefill counts once."""

    def __init__(self) -> None:
        self._by_request: dict[str, Usage] = {}
        self._samples: list[Usage] = []
        self._num_reasoning_tokens: int | None = None

    def add(self, request_id: str, usage: Usage, num_reasoning_tokens: int | None = None) -> None:
        """Count one sample.

        Args:
            request_id: whose sample it is.
            usage: what the engine counted.
            num_reasoning_tokens: how many of the sample's tokens were reasoning; None where nobody looks.
        """
        self._by_request[request_id] = usage
        self._samples.append(usage)
        if num_reasoning_tokens is not None:
            self._num_reasoning_tokens = (self._num_reasoning_tokens or 0) + num_reasoning_tokens

    def block(self) -> dict[str, Any]:
        num_prompt_tokens = sum(usage.num_prompt_tokens for usage in self._by_request.values())
        num_cached_tokens = sum(usage.num_cached_tokens for usage in self._by_request.values())
        num_completion_tokens = _num_completion_tokens(self._samples)
        block: dict[str, Any] = {
            "prompt_tokens": num_prompt_tokens,
            "completion_tokens": num_completion_tokens,
            "total_tokens": num_prompt_tokens + num_completion_tokens,
            "prompt_tokens_details": {"cached_tokens": num_cached_tokens},
        }
        if self._num_reasoning_tokens is not None:
            block["completion_tokens_details"] = {"reasoning_tokens": self._num_reasoning_tokens}
        if self._samples:
            block["lane"] = _lane([usage.lane for usage in self._samples])
            block |= _added([usage.extras for usage in self._samples])
        if drafted := [usage for usage in self._samples if usage.speculation is not None]:
            block["speculation"] = _speculation(drafted)
        return block


def _num_completion_tokens(samples: Sequence[Usage]) -> int:
    return sum(usage.num_completion_tokens for usage in samples)


def _lane(lanes: Sequence[str]) -> str:
    """What happened to any of them."""
    shared = "batched" if any(lane.startswith("batched") for lane in lanes) else "serial"
    return f"{shared}+spec" if any(lane.endswith("+spec") for lane in lanes) else shared


def _speculation(samples: Sequence[Usage]) -> dict[str, Any]:
    """Of samples that all have a report."""
    total = _added([usage.speculation for usage in samples if usage.speculation is not None])
    # The one value that is no count.
    total["tokensPerForward"] = _num_completion_tokens(samples) / total["rounds"] if total["rounds"] else 0.0
    return total


def _added(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Key by key; a key that some lack is of those that have it."""
    keys = dict.fromkeys(key for report in reports for key in report)
    return {key: _sum([report[key] for report in reports if key in report]) for key in keys}


def _sum(values: Sequence[Any]) -> Any:
    """Numbers add up, in lists place by place; of words each is said once."""
    if isinstance(values[0], Mapping):
        return _added(values)
    if isinstance(values[0], str):
        return "; ".join(dict.fromkeys(values))
    if not isinstance(values[0], list):
        return sum(values)
    if any(isinstance(item, str) for items in values for item in items):
        return list(dict.fromkeys(item for items in values for item in items))
    return [sum(items) for items in zip_longest(*values, fillvalue=0)]
