"""What in a schema is to blame where a compiler's own words don't say: the keywords, and where they stand."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sized
from typing import Any

from phyla.draft.json_schema import ANNOTATIONS, KEYWORDS, subschemas
from phyla.errors import ConstraintError
from phyla.output.structure import parse_structure
from phyla.request import ConstraintSpec

MAX_SECONDS = 1.0
MAX_ATTEMPTS = 200
"""Of computing, while parts of it are compiled alone. What isn't found by then is blamed on too many keywords."""

WEIGHTS: Mapping[str, int] = {"multipleOf": 1000, "pattern": 100, "patternProperties": 100, "$ref": 1}
"""Of keywords whose cost lies in no length; a repeated part of a pattern costs many times its own."""

WEIGHTLESS = ANNOTATIONS | {"type"}
MAX_BOUND_WEIGHT = 10_000
MAX_PATH_CHARS = 200

Attempt = Callable[[str], None]
"""Compiles a schema; raises ConstraintError where it can't."""


def blamed(spec: ConstraintSpec, error: ConstraintError, attempt: Attempt) -> str:
    """What the compiler said of it, with the keywords in front that it is about."""
    if spec.kind == "json_schema":
        return _Search(json.loads(spec.source), attempt, error).message()
    if spec.kind == "structural_tag":
        for schema in parse_structure(spec.source).schemas():
            try:
                attempt(schema)
            except ConstraintError as its:
                return _Search(json.loads(schema), attempt, its).message()
    return str(error)


def costliest(spec: ConstraintSpec) -> str:
    """The keywords that make it large or slow, as far as its text shows; empty for what has none."""
    if spec.kind == "json_schema":
        schemas = [json.loads(spec.source)]
    elif spec.kind == "structural_tag":
        schemas = [json.loads(schema) for schema in parse_structure(spec.source).schemas()]
    else:
        return ""
    weights: Counter[str] = Counter()
    for schema in schemas:
        _weigh(schema, weights)
    most = max(weights.values(), default=0)
    return _named([keyword for keyword, weight in weights.most_common() if 2 * weight >= most])


class _Search:
    def __init__(self, root: Any, attempt: Attempt, error: ConstraintError) -> None:
        self._attempt = attempt
        self._shared = {
            name: root[name] for name in ("$defs", "definitions") if isinstance(root, dict) and name in root
        }
        self._schema, self._where, self._error = root, "#", error
        self._until = time.process_time() + MAX_SECONDS
        self._num_left = MAX_ATTEMPTS

    def message(self) -> str:
        while self._descended():
            pass
        keywords = self._fewest()
        return f"{keywords} at {self._where[:MAX_PATH_CHARS]}: {self._error}" if keywords else str(self._error)

    def _descended(self) -> bool:
        """Go on to a part that fails by itself, if there is one."""
        for below, where in subschemas(self._schema, self._where):
            if isinstance(below, dict) and (error := self._error_of(below)) is not None:
                self._schema, self._where, self._error = below, where, error
                return True
        return False

    def _fewest(self) -> str:
        """The keywords without any of which it would do."""
        if not isinstance(self._schema, dict):
            return ""
        kept = {keyword: value for keyword, value in self._schema.items() if keyword not in ANNOTATIONS}
        for keyword in list(kept):
            without = {other: value for other, value in kept.items() if other != keyword}
            if without and self._error_of(without) is not None:
                kept = without
        return _named(keyword for keyword in kept if keyword in KEYWORDS)

    def _error_of(self, schema: dict[str, Any]) -> ConstraintError | None:
        if self._num_left <= 0 or time.process_time() > self._until:
            return None
        self._num_left -= 1
        try:
            self._attempt(json.dumps({**schema, **self._shared}))
        except ConstraintError as error:
            return error
        return None


def _named(keywords: Iterable[str]) -> str:
    names = [f"'{keyword}'" for keyword in keywords]
    return f"{'keyword' if len(names) == 1 else 'keywords'} {', '.join(names)}" if names else ""


def _weigh(schema: Any, weights: Counter[str]) -> None:
    if not isinstance(schema, dict):
        return
    for keyword, value in schema.items():
        if keyword in KEYWORDS and keyword not in WEIGHTLESS:
            weights[keyword] += WEIGHTS.get(keyword, 0) + _size(value)
        if keyword == "enum":
            weights[keyword] += sum(len(one) for one in value if isinstance(one, str))
    for below, _ in subschemas(schema, ""):
        _weigh(below, weights)


def _size(value: Any) -> int:
    if isinstance(value, int | float):
        return int(min(abs(value), MAX_BOUND_WEIGHT))
    return len(value) if isinstance(value, Sized) else 0
