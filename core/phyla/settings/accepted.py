"""Variables that upstream honours and that need no switch here: parsed, answered with one line, never ignored."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType

from phyla.settings.section import PREFIX

_NOT_BUILT = "packing prefill and decode into one forward isn't built; they interleave as separate forwards"
_NO_SWITCH = "no such switch is needed here"
_REMOVED = "removed upstream, no effect"

ACCEPTED_LEVERS: Mapping[str, str] = MappingProxyType(
    {
        "MIXED_PREFILL": _NOT_BUILT,
        "MIXED_TOKEN_BUDGET": _NOT_BUILT,
        "MIXED_PACKED_MLP": _NOT_BUILT,
        "PREFILL_TAIL_SPLIT": "a prompt's last token is always a step of its own",
        "BATCH_EXTEND": "joining a running batch always costs the same here",
        "QWEN_SPEC_KV4": _NO_SWITCH,
        "FRAME_EXTRACT": _NO_SWITCH,
        "LIBMLXC": _NO_SWITCH,
        "NATIVE_PACK_URL": _NO_SWITCH,
        "EXPERT_IO_DYLIB": _NO_SWITCH,
        "PERF_KERNEL": _REMOVED,
        "FUSED_GELU": _REMOVED,
        "FUSED_DECODE": _REMOVED,
        "FUSED_SWIGLU*": _REMOVED,
        "CPM5_FAITHFUL": _REMOVED,
    }
)
"""Suffix (or pattern of suffixes) of the variable, and what happens here."""


def accepted_notice(variable: str) -> str | None:
    """The line that says what an accepted variable does here; None if it isn't one of them."""
    suffix = variable.removeprefix(PREFIX)
    for pattern, meaning in ACCEPTED_LEVERS.items():
        if fnmatchcase(suffix, pattern):
            return f"{variable} is accepted: {meaning}."
    return None
