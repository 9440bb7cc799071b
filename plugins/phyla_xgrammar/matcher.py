"""One row's matcher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from phyla.draft.following import MOST_SECONDS, within_time
from phyla.errors import ConstraintError
from phyla.sampling.token_mask import all_allowed

if TYPE_CHECKING:
    import xgrammar
    from phyla.tokenizer import Tokenizer


MOST_FORCED_BYTES = 64
"""Found at once. The library's own search has no end where a grammar forces text without end."""


class Matcher:
    """A `Constraint` over the library's automaton."""

    def __init__(
        self,
        matcher: xgrammar.GrammarMatcher,
        tokenizer: Tokenizer,
        eos: npt.NDArray[np.int32],
        first_bytes: npt.NDArray[np.int16],
    ) -> None:
        """Over a matcher at its start.

        Args:
            matcher: this row's own.
            tokenizer: spells what is forced.
            eos: (ceil(V / 32),) words in which the ids that end a sequence are set.
            first_bytes: (V,) what each token begins with, negative for those without text.
        """
        self._matcher = matcher
        self._tokenizer = tokenizer
        self._eos = eos
        self._first_bytes = first_bytes
        self._mask: npt.NDArray[np.int32] | None = None

    def mask(self) -> npt.NDArray[np.int32]:
        if self._mask is None:
            self._mask = self._filled()
        return self._mask

    def accept(self, token_id: int) -> None:
        is_end = token_id // 32 < len(self._eos) and int(self._eos[token_id // 32]) >> (token_id % 32) & 1
        if is_end or not within_time(lambda: self._matcher.accept_token(token_id), MOST_SECONDS):
            raise ConstraintError(f"The constraint doesn't allow token {token_id} here.")
        self._mask = None

    def rollback(self, num_tokens: int) -> None:
        if num_tokens:
            self._matcher.rollback(num_tokens)
            self._mask = None

    def forced(self) -> Sequence[int]:
        """The forced text as the tokenizer spells it, without its last token: what follows may belong to that one."""
        # What is left of a character at the end waits for its other bytes.
        text = self._forced_bytes().decode(errors="ignore")
        ids = self._tokenizer.encode(text, parse_special=False)[:-1] if text else []
        return ids if self._may_follow(ids) else ()

    @property
    def is_satisfied(self) -> bool:
        return self._matcher.is_completed() and bool(np.array_equal(self.mask(), self._eos))

    def _forced_bytes(self) -> bytes:
        """What must come next, byte by byte; leaves the matcher as it was."""
        found = bytearray()
        words = self.mask()
        while len(found) < MOST_FORCED_BYTES:
            only = self._only_byte(words)
            if only is None or not self._matcher.accept_string(only):
                break
            found += only
            words = np.zeros_like(self._eos)
            self._matcher.fill_next_token_bitmask(words[None])
        self._matcher.rollback(len(found))
        return bytes(found)

    def _only_byte(self, words: npt.NDArray[np.int32]) -> bytes | None:
        """The byte that every allowed token begins with, if it is one and the same."""
        used = np.flatnonzero(words)
        bits = np.unpackbits(words[used].view(np.uint8), bitorder="little").reshape(len(used), 32)
        places, offsets = np.nonzero(bits)
        first = self._first_bytes[used[places] * 32 + offsets]
        return bytes([first[0]]) if len(first) and first[0] >= 0 and (first == first[0]).all() else None

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
        if not within_time(lambda: self._matcher.fill_next_token_bitmask(words), MOST_SECONDS):
            words = all_allowed(self._tokenizer.vocab_size)[None]
        allowed: npt.NDArray[np.int32] = words[0] & ~self._eos
        if self._matcher.is_completed():
            return np.bitwise_or(allowed, self._eos)
        if not allowed.any():
            raise ConstraintError("The constraint can't be satisfied from here: no token may come next.")
        return allowed
