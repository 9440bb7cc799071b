"""One row's matcher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from phyla.errors import ConstraintError
from phyla.sampling.token_mask import all_allowed

if TYPE_CHECKING:
    import xgrammar
    from phyla.tokenizer import Tokenizer


class Matcher:
    """A `Constraint` over the library's automaton."""

    def __init__(self, matcher: xgrammar.GrammarMatcher, tokenizer: Tokenizer, eos: npt.NDArray[np.int32]) -> None:
        """Over a matcher at its start.

        Args:
            matcher: this row's own.
            tokenizer: spells what is forced.
            eos: (ceil(V / 32),) words in which the ids that end a sequence are set.
        """
        self._matcher = matcher
        self._tokenizer = tokenizer
        self._eos = eos
        self._mask: npt.NDArray[np.int32] | None = None

    def mask(self) -> npt.NDArray[np.int32]:
        if self._mask is None:
            self._mask = self._filled()
        return self._mask

    def accept(self, token_id: int) -> None:
        is_end = token_id // 32 < len(self._eos) and int(self._eos[token_id // 32]) >> (token_id % 32) & 1
        if is_end or not self._matcher.accept_token(token_id):
            raise ConstraintError(f"The constraint doesn't allow token {token_id} here.")
        self._mask = None

    def rollback(self, num_tokens: int) -> None:
        if num_tokens:
            self._matcher.rollback(num_tokens)
            self._mask = None

    def forced(self) -> Sequence[int]:
        """The forced text as the tokenizer spells it, without its last token: what follows may belong to that one."""
        text = self._matcher.find_jump_forward_string()
        ids = self._tokenizer.encode(text, parse_special=False)[:-1] if text else []
        return ids if self._may_follow(ids) else ()

    @property
    def is_satisfied(self) -> bool:
        return self._matcher.is_completed() and bool(np.array_equal(self.mask(), self._eos))

    def _may_follow(self, ids: Sequence[int]) -> bool:
        """Whether the grammar takes them; leaves the matcher as it was."""
        num_accepted = 0
        for token_id in ids:
            if not self._matcher.accept_token(token_id):
                break
            num_accepted += 1
        self._matcher.rollback(num_accepted)
        return num_accepted == len(ids)

    def _filled(self) -> npt.NDArray[np.int32]:
        words = np.zeros((1, len(self._eos)), dtype=np.int32)
        if not self._matcher.fill_next_token_bitmask(words):
            words = all_allowed(self._tokenizer.vocab_size)[None]
        allowed: npt.NDArray[np.int32] = words[0] & ~self._eos
        if self._matcher.is_completed():
            return np.bitwise_or(allowed, self._eos)
        if not allowed.any():
            raise ConstraintError("The constraint can't be satisfied from here: no token may come next.")
        return allowed
