"""Checks of single request fields, with the messages that clients of mlx-lm's server know."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from phyla.errors import RequestError

LEAST, MOST = 1e-30, 1e30
"""Sizes of what logits are divided by, and of what is added to or multiplied with them: beyond, float32 overflows, and
no row is a distribution any more."""


def checked_number(
    fields: Mapping[str, Any], name: str, default: float, least: float | None = None, most: float | None = None
) -> float:
    """A number within its range; absent and null give the default.

    Raises:
        RequestError: another type, not finite, or out of range.
    """
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"{name} must be of type ('float', 'int')")
    _in_range(name, value, least, most)
    if not _is_finite(value):
        raise RequestError(f"{name} must be a finite number")
    return float(value)


def checked_penalty(
    fields: Mapping[str, Any], name: str, default: float, least: float = -MOST, *, is_factor: bool = False
) -> float:
    """As `checked_number`, for what changes logits: it stays in the range where float32 can follow.

    Args:
        fields: the request's.
        name: the field.
        default: what absent and null give.
        least: the smallest value.
        is_factor: logits are divided by it too; 0 is off, and what is nearly 0 is refused.
    """
    value = checked_number(fields, name, default, least=least, most=MOST)
    if is_factor and 0 < value < LEAST:
        raise RequestError(f"{name} must be 0 or at least {LEAST}")
    return value


def checked_int(
    fields: Mapping[str, Any], name: str, default: int, least: int | None = None, most: int | None = None
) -> int:
    """As `checked_number`, for whole numbers; booleans and 1.0 aren't any."""
    value = checked_optional_int(fields, name, least, most)
    return default if value is None else value


def checked_optional_int(
    fields: Mapping[str, Any], name: str, least: int | None = None, most: int | None = None
) -> int | None:
    """As `checked_int`; absent and null give None."""
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} must be of type int")
    _in_range(name, value, least, most)
    return value


def checked_bool(fields: Mapping[str, Any], name: str, default: bool = False) -> bool:
    """True or false; absent and null give the default."""
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise RequestError(f"{name} must be of type bool")
    return value


def checked_names(fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """A list of strings; absent and null are empty."""
    value = fields.get(name)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise RequestError(f"{name} must be a list of str")
    return tuple(value)


def checked_logit_bias(fields: Mapping[str, Any], vocab_size: int) -> dict[int, float]:
    """Token ids to numbers that float32 can add up; JSON's string keys are coerced, an empty object is unset.

    Raises:
        RequestError: not such a dict, or an id outside the vocabulary.
    """
    value = fields.get("logit_bias")
    if value is None:
        return {}
    wrong = RequestError("logit_bias must be a dict of int to float")
    if not isinstance(value, dict) or any(isinstance(one, bool) for one in (*value.keys(), *value.values())):
        raise wrong
    try:
        bias = {int(token_id): float(number) for token_id, number in value.items()}
    except (TypeError, ValueError, OverflowError):
        raise wrong from None
    if not all(math.isfinite(number) for number in bias.values()):
        raise wrong
    for token_id in bias:
        if not 0 <= token_id < vocab_size:
            raise RequestError(f"logit_bias token id {token_id} is outside the vocabulary (0 to {vocab_size - 1})")
    for number in bias.values():
        _in_range("logit_bias", number, -MOST, MOST)
    return bias


def _in_range(name: str, value: float, least: float | None, most: float | None) -> None:
    if least is not None and value < least:
        raise RequestError(f"{name} must be at least {least}")
    if most is not None and value > most:
        raise RequestError(f"{name} must be at most {most}")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
