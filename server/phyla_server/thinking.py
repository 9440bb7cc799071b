"""Whether and how deeply a turn thinks: the request's template argument, its effort, the server's flag, the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from phyla_server.errors import bad_request
from phyla_server.fields import Fields

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
DEPTHS = {"minimal": "low", "low": "low", "medium": "medium", "high": "xhigh", "xhigh": "xhigh"}


@dataclass(frozen=True)
class Thinking:
    """`enabled` is None where the template's own default decides."""

    enabled: bool | None
    template_args: Mapping[str, Any] = field(default_factory=dict)


def read_thinking(fields: Fields, flag: bool | None, model_default: bool | None) -> Thinking:
    """The first that speaks of `chat_template_kwargs.enable_thinking`, `reasoning_effort`, `--thinking` and the model.

    Raises:
        ApiError: 400 for an effort that doesn't exist.
    """
    args = dict(fields.mapping("chat_template_kwargs") or {})
    explicit = args.pop("enable_thinking", None)
    effort = fields.body.get("reasoning_effort")
    if effort is not None and effort not in EFFORTS:
        listed = ", ".join(repr(one) for one in EFFORTS)
        raise bad_request(f"reasoning_effort must be one of {listed}", "reasoning_effort")
    if isinstance(explicit, bool):
        enabled: bool | None = explicit
    elif effort is not None:
        enabled = effort != "none"
    else:
        enabled = flag if flag is not None else model_default
    if enabled is not None:
        args["enable_thinking"] = enabled
    if effort in DEPTHS:
        args.setdefault("reasoning_effort", DEPTHS[effort])
    return Thinking(enabled, args)
