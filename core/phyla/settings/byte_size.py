"""Sizes as users write them: `8`, `8GiB`, `20GB`, `512M`."""

from __future__ import annotations

import re
from typing import Literal

from phyla.errors import SettingsError

GB = 10**9
GIB = 2**30

_UNITS = {
    "": 1,
    "k": 10**3,
    "kb": 10**3,
    "kib": 2**10,
    "m": 10**6,
    "mb": 10**6,
    "mib": 2**20,
    "g": GB,
    "gb": GB,
    "gib": GIB,
    "t": 10**12,
    "tb": 10**12,
    "tib": 2**40,
    "b": 1,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


def parse_bytes(text: str, bare: Literal["GB", "GiB"]) -> int:
    """Bytes of a size.

    Args:
        text: a number with or without a unit.
        bare: what a number without a unit counts in.

    Raises:
        SettingsError: it is no size.
    """
    matched = _SIZE.fullmatch(text)
    unit = matched.group(2).lower() if matched else ""
    if matched is None or unit not in _UNITS:
        raise SettingsError(f"'{text}' is no size. Write a number of {bare}, or one with a unit: 8GiB, 20GB, 512MiB.")
    factor = _UNITS[unit] if unit else (GB if bare == "GB" else GIB)
    return int(float(matched.group(1)) * factor)
