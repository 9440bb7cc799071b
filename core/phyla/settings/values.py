"""Types of settings that people write in more than one way."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]*)\s*")


def parse_size(text: str | int | float, *, bare_unit: int) -> int:
    """Bytes of a size such as `8GiB`, `800MB` or `8`.

    Args:
        text: a number, with or without a suffix.
        bare_unit: bytes that a number without a suffix counts.

    Raises:
        ValueError: it isn't a size; the message says what one looks like.
    """
    found = _SIZE.fullmatch(str(text)) if not isinstance(text, bool) else None
    if found is None or found[2].upper() not in _UNITS:
        raise ValueError(f"{text!r} isn't a size: give a number, or one with a suffix such as 8GiB or 20GB")
    unit = _UNITS[found[2].upper()] if found[2] else bare_unit
    return int(float(found[1]) * unit)


def _decimal(value: Any) -> Any:
    return parse_size(value, bare_unit=10**9) if value is not None else None


def _binary(value: Any) -> Any:
    return parse_size(value, bare_unit=2**30) if value is not None else None


def _word(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    words = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}
    if value.lower() not in words:
        raise ValueError(f'expects on|off (got "{value}")')
    return words[value.lower()]


def _auto_or_word(value: Any) -> Any:
    if isinstance(value, str) and value.lower() == "auto":
        return "auto"
    try:
        word = _word(value)
    except ValueError:
        raise ValueError(f'expects auto|on|off (got "{value}")') from None
    return {True: "on", False: "off"}.get(word, word)


DecimalGB = Annotated[int, BeforeValidator(_decimal)]
"""Bytes; a bare number is in GB of 10**9."""

BinaryGiB = Annotated[int, BeforeValidator(_binary)]
"""Bytes; a bare number is in GiB of 2**30."""

OnOff = Annotated[bool, BeforeValidator(_word), "word"]
"""A boolean whose flag takes a word: on, off, true, false, 1 or 0."""

AutoOnOff = Annotated[Literal["auto", "on", "off"], BeforeValidator(_auto_or_word)]
"""Like `OnOff`, with `auto` for what the machine decides."""
