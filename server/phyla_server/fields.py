"""Reading a request body: each field has a type and a range, and each refusal says which."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from phyla_server.errors import bad_request


class Fields:
    """Typed access to a JSON object. A field that is absent or null is unset."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self.body = body

    def flag(self, name: str) -> bool | None:
        value = self.body.get(name)
        if value is not None and not isinstance(value, bool):
            raise bad_request(f"{name} must be of type bool", name)
        return value

    def text(self, name: str) -> str | None:
        value = self.body.get(name)
        if value is not None and not isinstance(value, str):
            raise bad_request(f"{name} must be of type str", name)
        return value

    def mapping(self, name: str) -> Mapping[str, Any] | None:
        value = self.body.get(name)
        if value is not None and not isinstance(value, dict):
            raise bad_request(f"{name} must be of type dict", name)
        return value

    def array(self, name: str) -> Sequence[Any] | None:
        value = self.body.get(name)
        if value is not None and not isinstance(value, list):
            raise bad_request(f"{name} must be of type list", name)
        return value

    def integer(self, name: str, least: int | None = None, most: int | None = None) -> int | None:
        value = self.body.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            raise bad_request(f"{name} must be of type int", name)
        _check_range(name, value, least, most)
        return value

    def number(self, name: str, least: float | None = None, most: float | None = None) -> float | None:
        value = self.body.get(name)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool) or not _is_finite(value):
            raise bad_request(f"{name} must be of type ('float', 'int')", name)
        _check_range(name, value, least, most)
        return float(value)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an int that no float can hold
        return False


def _check_range(name: str, value: float, least: float | None, most: float | None) -> None:
    if least is not None and value < least:
        raise bad_request(f"{name} must be at least {least:g}", name)
    if most is not None and value > most:
        raise bad_request(f"{name} must be at most {most:g}", name)
