"""JSON that a model wrote: read and written again so that a client's parser takes it, or refused."""

from __future__ import annotations

import json
import math
from typing import Any


def read_json(text: str) -> Any:
    """The value that `text` spells.

    Raises:
        ValueError: it isn't JSON, nests deeper than can be read, or holds a number that JSON can't spell again.
    """
    try:
        return json.loads(text, parse_constant=_refused, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("nests too deeply") from error


def write_json(value: Any) -> str:
    """One line of JSON, characters beyond ASCII as they are."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _finite(text: str) -> float:
    # `1e999` is JSON, but Python reads infinity and writes a word that no other parser knows.
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no finite number")
    return number


def _refused(name: str) -> Any:
    raise ValueError(f"{name} isn't JSON")
