"""When an answer ends: caps and stop strings of a request."""

from __future__ import annotations

from phyla_server.errors import bad_request
from phyla_server.fields import Fields

MAX_STOP_STRINGS = 256


def read_max_tokens(fields: Fields) -> int | None:
    """`max_completion_tokens`, else `max_tokens`; None leaves it to the server's cap and the context."""
    newer = fields.integer("max_completion_tokens", least=1)
    older = fields.integer("max_tokens", least=1)
    return newer if newer is not None else older


def read_stop(fields: Fields) -> tuple[str, ...]:
    """`stop` as one string or several; entries that are empty or no strings are dropped."""
    value = fields.body.get("stop")
    entries = value if isinstance(value, list) else [value]
    strings = tuple(one for one in entries if isinstance(one, str) and one)
    if len(strings) > MAX_STOP_STRINGS:
        raise bad_request(f"stop must hold at most {MAX_STOP_STRINGS} strings", "stop")
    return strings
