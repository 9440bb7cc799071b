"""What following a compiled grammar may cost: the library bounds no step, and some grow with every token."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import xgrammar
from phyla.errors import ConstraintError

Result = TypeVar("Result")

NUM_WALKS = 3
NUM_STEPS = 32
MOST_TRIED_SECONDS = 0.05
MOST_SECONDS = 0.1
"""Of computing: a row's step is taken on the engine's thread, where everybody waits for it."""


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


def check_following(compiled: xgrammar.CompiledGrammar, vocab_size: int) -> None:
    """Walk through the grammar some way, by tokens drawn from what it allows.

    Raises:
        ConstraintError: nothing satisfies it, or a step takes too long.
    """
    for seed in range(NUM_WALKS):
        _walk(compiled, vocab_size, np.random.default_rng(seed))


def _walk(compiled: xgrammar.CompiledGrammar, vocab_size: int, dice: np.random.Generator) -> None:
    words = np.zeros((1, (vocab_size + 31) // 32), dtype=np.int32)
    matcher = within_time(lambda: xgrammar.GrammarMatcher(compiled), MOST_TRIED_SECONDS)
    for step in range(NUM_STEPS):
        if not within_time(lambda: matcher.fill_next_token_bitmask(words), MOST_TRIED_SECONDS):
            words.fill(-1)
        allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")[:vocab_size])
        if not step and not len(allowed):
            raise ConstraintError("nothing satisfies it.")
        # Both are sets already; finding that out would sort the vocabulary at every step.
        going_on = np.setdiff1d(allowed, matcher.stop_token_ids, assume_unique=True)
        if not len(going_on):
            return
        token_id = int(dice.choice(going_on))
        if not within_time(lambda: matcher.accept_token(token_id), MOST_TRIED_SECONDS):  # noqa: B023
            return
