"""What the rows of a case read: seeded random ids, or the tokens of a text."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

from phyla.cli.bench.cases import Case

FIRST_ID = 3
"""The ids below are often an end of sequence."""


@dataclass(frozen=True)
class PromptMaker:
    """Gives both sides the same prompts, and every run of the program too."""

    num_ids: int
    """Ids are drawn from below this one."""

    text_ids: Sequence[int] | None = None
    """Read again from the start where a prompt is longer."""

    def prompts(self, case: Case, number: int) -> list[list[int]]:
        """The rows of the case's run of that number.

        Prompts that are read are new each time; those that are decoded behind stay, and rows of one length differ in
        their last token alone, so that what a row has stored is computed once for all of them and all runs.
        """
        if self.text_ids is not None:
            return [list(itertools.islice(itertools.cycle(self.text_ids), tokens)) for tokens in case.stored]
        if case.kind == "pp":
            return [self._random(tokens, f"{number} {row}") for row, tokens in enumerate(case.stored)]
        behind = {tokens: self._random(tokens - 1, "behind") for tokens in set(case.stored)}
        return [[*behind[tokens], FIRST_ID + row % self._span] for row, tokens in enumerate(case.stored)]

    @property
    def _span(self) -> int:
        return self.num_ids - FIRST_ID

    def _random(self, num_tokens: int, seed: str) -> list[int]:
        drawn = random.Random(f"{seed} {num_tokens}")
        return [drawn.randrange(FIRST_ID, self.num_ids) for _ in range(num_tokens)]
