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
    harmless: str | None = None
    """A value that says what happens here anyway, and so is accepted."""

    def refuses(self, value: object) -> bool:
        """Whether the flag with that value is refused; None and False are a flag that wasn't given."""
        return self.refused and bool(value) and value != self.harmless

    def notice(self, flag: str) -> str:
        """The line that an accepted one is answered with."""
        return f"{flag} is accepted: {'that is what happens here anyway' if self.refused else self.meaning}."


FOREIGN_FLAGS: Mapping[str, ForeignFlag] = MappingProxyType(
    {
        "--kv-group-size": ForeignFlag("write the group size into --kv-scheme NAME:SPEC", refused=True, harmless="64"),
        "--no-open": ForeignFlag("no browser is ever opened", takes_value=False),
        "--prompt-concurrency": ForeignFlag("prompts are computed one by one between the others' steps"),
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
        "--chat-template-args": ForeignFlag("send chat_template_kwargs with each request", refused=True),
        "--adapter-path": ForeignFlag("no adapters are mounted here; merge it into the weights first", refused=True),
        "--adapter": ForeignFlag("no adapters are mounted here; merge it into the weights first", refused=True),
        "--min-p": ForeignFlag("requests give min_p themselves", refused=True),
        "--l3": ForeignFlag("the tier was removed upstream; use --l1 or --l2", refused=True, takes_value=False),
    }
)
