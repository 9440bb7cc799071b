"""What a plugin that changes logits declares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import mlx.core as mx

    from phyla.request import Request

LogitsProcessor = Callable[[Sequence[int], "mx.array"], "mx.array"]
"""`(history, (1, V) logits) -> (1, V) logits` of one row. History is the prompt and everything emitted so far."""

LogprobsSampler = Callable[["mx.array", "mx.array"], "mx.array"]
"""`((V,) log-probabilities, key) -> () int32 id` of one row; replaces filters and temperature."""


@dataclass(frozen=True)
class NamedSampler:
    """One processor or sampler by name, as `phyla_samplers` gives it."""

    name: str
    role: Literal["processor", "sampler"]
    create: Callable[[Request], LogitsProcessor | LogprobsSampler]
    """Per request, on the engine thread; what it raises fails that request alone."""

    description: str = ""
