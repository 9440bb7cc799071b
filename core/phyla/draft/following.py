"""What following a compiled constraint may cost: some libraries bound no step, and some steps grow with every token."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from phyla.errors import ConstraintError

Result = TypeVar("Result")

NUM_WALKS = 3
NUM_STEPS = 32
MOST_TRIED_SECONDS = 0.05
MOST_SECONDS = 0.1
"""Of computing: a row's step is taken on the engine's thread, where everybody waits for it."""

BITS = 32


class Followed(Protocol):
    """A matcher of a library's own, as far as a walk needs it."""

    def mask(self) -> npt.NDArray[np.int32]:
        """(ceil(V / 32),) the ids that may come next, end of sequence among them where the library says so."""
        ...

    def accept(self, token_id: int) -> bool:
        """Advance; whether that went well.

        Raises:
            ConstraintError: the library is at its limits.
        """
        ...


def within_time(work: Callable[[], Result], most_seconds: float) -> Result:
    """What `work` gives.

    Raises:
        ConstraintError: it computed for longer.
    """
    began = time.thread_time()
    result = work()
    if time.thread_time() - began > most_seconds:
        raise ConstraintError("Checking each token of an answer takes too long with it. Make it simpler.")
    return result


def check_following(start: Callable[[], Followed], eos_ids: frozenset[int]) -> None:
    """Walk through a constraint some way, by tokens drawn from what it allows.

    Args:
        start: a matcher at the start.
        eos_ids: ids that end a sequence, where a walk ends too.

    Raises:
        ConstraintError: nothing satisfies it, a step takes too long, or the library's limits end it.
    """
    for seed in range(NUM_WALKS):
        _walk(within_time(start, MOST_TRIED_SECONDS), eos_ids, np.random.default_rng(seed))


def _walk(matcher: Followed, eos_ids: frozenset[int], dice: np.random.Generator) -> None:
    for step in range(NUM_STEPS):
        words = within_time(matcher.mask, MOST_TRIED_SECONDS).view(np.uint32)
        if not step and not words.any():
            raise ConstraintError("nothing satisfies it.")
        token_id = _drawn(words, eos_ids, dice)
        if token_id is None or not within_time(lambda: matcher.accept(token_id), MOST_TRIED_SECONDS):  # noqa: B023
            return


def _drawn(words: npt.NDArray[np.uint32], eos_ids: frozenset[int], dice: np.random.Generator) -> int | None:
    """One of the ids but those that end a sequence; looks at one word, not at the vocabulary bit by bit."""
    going_on = words.copy()
    for token_id in eos_ids:
        if token_id // BITS < len(going_on):
            going_on[token_id // BITS] &= ~np.uint32(1 << (token_id % BITS))
    used = np.flatnonzero(going_on)
    if not len(used):
        return None
    word = int(dice.choice(used))
    return word * BITS + int(dice.choice([bit for bit in range(BITS) if int(going_on[word]) >> bit & 1]))
