"""JSON that came with a model: strict, bounded, and complained about without naming a path."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from phyla.errors import DamagedCheckpoint

MAX_JSON_BYTES = 64 * 1024 * 1024
"""Larger than any tokenizer.json or index in use, small enough to parse."""


def read_json_object(path: Path, owner: str, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """The object in a file.

    Args:
        path: the file.
        owner: the model's id, for messages; the path never appears in them.
        max_bytes: refuse more.

    Raises:
        DamagedCheckpoint: not one strict JSON object, or too large.
    """
    what = f"{path.name} of {owner}"
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise DamagedCheckpoint(f"{what} can't be read: {error.strerror}. Fetch the model again.") from error
    if len(data) > max_bytes:
        raise DamagedCheckpoint(f"{what} is larger than {max_bytes} bytes, which no such file needs.")
    return parse_json_object(data, what)


def parse_json_object(data: bytes, what: str) -> dict[str, Any]:
    """The object that `data` spells; `what` names it in messages.

    Raises:
        DamagedCheckpoint: invalid UTF-8 or JSON, a repeated key, NaN or Infinity, too deep, or not an object.
    """
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constants)
    except UnicodeDecodeError as error:
        raise DamagedCheckpoint(f"{what} isn't UTF-8 text (byte {error.start}).") from error
    except json.JSONDecodeError as error:
        raise DamagedCheckpoint(
            f"{what} isn't valid JSON: {error.msg} at line {error.lineno}, column {error.colno}."
        ) from error
    except RecursionError as error:
        raise DamagedCheckpoint(f"{what} is nested too deeply.") from error
    except ValueError as error:
        raise DamagedCheckpoint(f"{what} isn't valid JSON: {error}.") from error
    if not isinstance(value, dict):
        raise DamagedCheckpoint(f"{what} holds a {type(value).__name__} where an object belongs.")
    return value


def canonical(value: Mapping[str, Any]) -> bytes:
    """One spelling per value, for digests."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"key {key[:80]!r} appears twice")
            seen.add(key)
    return found


def _no_constants(spelling: str) -> NoReturn:
    raise ValueError(f"{spelling} isn't JSON")
