"""Flags of other servers that no setting here has: accepted with a line that says why, or refused with the remedy.

A plugin that declares one of these flags takes it over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class ForeignFlag:
    """What happens to one."""

    meaning: str
    """Why nothing needs to happen, or what to use instead."""

    refused: bool = False
    takes_value: bool = True


FOREIGN_FLAGS: Mapping[str, ForeignFlag] = MappingProxyType(
    {
        "--kv-group-size": ForeignFlag("write the group size into --kv-scheme NAME:SPEC", refused=True),
        "--quantized-kv-start": ForeignFlag(
            "quantised storage begins with the first token here; leave it away", refused=True
        ),
        "--prompt-concurrency": ForeignFlag("prompts are computed one by one between the others' steps"),
        "--prefill-step-size": ForeignFlag(
            "the chunk is part of what decides the bits; set PHYLA_RD_PREFILL_CHUNK if you must", refused=True
        ),
        "--prompt-cache-size": ForeignFlag(
            "the prefix cache is bounded in bytes, not in entries; use --prompt-cache SIZE", refused=True
        ),
        "--prompt-cache-bytes": ForeignFlag("use --prompt-cache with a suffix, such as 8GiB", refused=True),
        "--trust-remote-code": ForeignFlag(
            "code from a checkpoint is never run; a model that needs it needs a family plugin",
            refused=True,
            takes_value=False,
        ),
        "--pipeline": ForeignFlag(
            "there is no pipeline parallelism here; leave it away", refused=True, takes_value=False
        ),
        "--use-default-chat-template": ForeignFlag(
            "a model without a chat template serves /v1/completions; leave it away", refused=True, takes_value=False
        ),
        "--chat-template": ForeignFlag("put a chat_template.jinja into the model's folder", refused=True),
        "--min-p": ForeignFlag("requests give min_p themselves", refused=True),
        "--l3": ForeignFlag("the tier was removed upstream; use --l1 or --l2", refused=True, takes_value=False),
    }
)
