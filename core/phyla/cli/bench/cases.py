"""What `phyla bench engine` measures: cases such as `fast:tg@8x512`, written by users and read here."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from phyla.errors import UsageError

Kind = Literal["pp", "tg"]
Route = Literal["auto", "exact", "fast"]

SUITES: Mapping[str, tuple[str, ...]] = {
    "routes": (
        "exact:pp@1x2048",
        "exact:tg@1x512",
        "exact:tg@1x4096",
        "fast:tg@1x512",
        "fast:tg@8x512",
        "fast:tg@32x512",
        "fast:tg@1x4096",
        "fast:tg@8x4096",
        "fast:tg@32x4096",
        "fast:tg@8x200",
        "fast:tg@1x16384+7x200",
    )
}
"""Cases that belong together: both routes, few and many rows, and one long row among short ones."""

SYNTAX = (
    "[ROUTE:]KIND@ROWS, where KIND is pp (reading prompts) or tg (decoding), and ROWS is COUNTxTOKENS, or several with "
    "a plus: fast:tg@8x512, pp@1x2048, tg@1x16384+7x200"
)
_CASE = re.compile(r"(?:(\w+):)?(\w+)@(\d+x\d+(?:\+\d+x\d+)*)")


@dataclass(frozen=True)
class Case:
    """Rows that are run together."""

    kind: Kind
    stored: tuple[int, ...]
    """Prompt tokens of each row."""

    route: Route | None = None
    """None: as the settings say."""

    @property
    def name(self) -> str:
        runs = itertools.groupby(self.stored)
        rows = "+".join(f"{len(list(same))}x{tokens}" for tokens, same in runs)
        return f"{'' if self.route is None else f'{self.route}:'}{self.kind}@{rows}"

    @property
    def num_rows(self) -> int:
        return len(self.stored)

    @classmethod
    def parse(cls, text: str) -> Case:
        """Read what a user wrote.

        Raises:
            UsageError: it isn't a case; says what one looks like.
        """
        found = _CASE.fullmatch(text.strip())
        if found is None or found[2] not in get_args(Kind) or found[1] not in (None, *get_args(Route)):
            raise UsageError(f"'{text}' isn't a case: {SYNTAX}.")
        stored: list[int] = []
        for run in found[3].split("+"):
            count, tokens = map(int, run.split("x"))
            stored += [tokens] * count
        if not stored or min(stored) < 1:
            raise UsageError(f"'{text}' has no rows, or rows without tokens: {SYNTAX}.")
        kind: Kind = "pp" if found[2] == "pp" else "tg"
        return cls(kind, tuple(stored), _route(found[1]))


def cases_of(
    named: Sequence[str], prompts: Sequence[int], stored: Sequence[int], rows: Sequence[int]
) -> tuple[Case, ...]:
    """The cases that a user named, then one for each prompt length and for each pair of stored length and row count."""
    return tuple(dict.fromkeys([*map(Case.parse, named), *_product(prompts, stored, rows)]))


def _product(prompts: Sequence[int], stored: Sequence[int], rows: Sequence[int]) -> Iterator[Case]:
    for tokens in prompts:
        yield Case("pp", (tokens,))
    for tokens, count in itertools.product(stored, rows):
        yield Case("tg", (tokens,) * count)


def _route(text: str | None) -> Route | None:
    routes: dict[str | None, Route] = {"auto": "auto", "exact": "exact", "fast": "fast"}
    return routes.get(text)
