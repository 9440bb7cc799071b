"""A constraint small enough to see through, and the contract every constraint engine holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pytest

from phyla.draft.constraint import CompiledConstraint, Constraint
from phyla.errors import ConstraintError
from phyla.sampling.token_mask import allowed_only, allows


class WordList:
    """Output must be one of a few id sequences, then end of sequence."""

    def __init__(self, words: Iterable[Sequence[int]], *, eos_ids: Iterable[int], vocab_size: int) -> None:
        self._words = tuple(tuple(word) for word in words)
        self._eos_ids = tuple(eos_ids)
        self._vocab_size = vocab_size

    @property
    def num_bytes(self) -> int:
        return 8 * sum(len(word) for word in self._words)

    def open(self) -> Constraint:
        return _WordMatcher(self._words, self._eos_ids, self._vocab_size)


class _WordMatcher:
    def __init__(self, words: tuple[tuple[int, ...], ...], eos_ids: tuple[int, ...], vocab_size: int) -> None:
        self._words = words
        self._eos_ids = eos_ids
        self._vocab_size = vocab_size
        self._accepted: list[int] = []

    def mask(self) -> npt.NDArray[np.int32]:
        ends = self._eos_ids if tuple(self._accepted) in self._words else ()
        return allowed_only({*self._next_ids(), *ends}, self._vocab_size)

    def accept(self, token_id: int) -> None:
        if token_id not in self._next_ids():
            raise ConstraintError(f"No word goes on with token {token_id} after {self._accepted}.")
        self._accepted.append(token_id)

    def rollback(self, num_tokens: int) -> None:
        assert num_tokens <= len(self._accepted), "more taken back than was accepted"
        del self._accepted[len(self._accepted) - num_tokens :]

    def forced(self) -> Sequence[int]:
        word: list[int] = []
        while tuple(self._accepted + word) not in self._words and len(next_ids := self._next_ids(word)) == 1:
            word.extend(next_ids)
        return word

    @property
    def is_satisfied(self) -> bool:
        return tuple(self._accepted) in self._words and not self._next_ids()

    def _next_ids(self, further: Sequence[int] = ()) -> set[int]:
        begun = (*self._accepted, *further)
        return {word[len(begun)] for word in self._words if len(word) > len(begun) and word[: len(begun)] == begun}


class ConstraintContract:
    """Subclass, give the fixtures, and the tests below run.

    `compiled` is what the engine made of some constraint, `vocab_size` its ids, `sentences` token-id sequences that
    it must allow from the start and that satisfy it.
    """

    num_walks: ClassVar[int] = 20
    """Random walks through what the masks allow."""

    @pytest.fixture
    def compiled(self) -> CompiledConstraint:
        raise AssertionError("give the contract a `compiled` fixture")

    @pytest.fixture
    def vocab_size(self) -> int:
        raise AssertionError("give the contract a `vocab_size` fixture")

    @pytest.fixture
    def sentences(self) -> list[list[int]]:
        raise AssertionError("give the contract a `sentences` fixture")

    def test_every_sentence_is_allowed_and_satisfies(
        self, compiled: CompiledConstraint, sentences: list[list[int]]
    ) -> None:
        for sentence in sentences:
            matcher = compiled.open()
            for token_id in sentence:
                mask = matcher.mask()
                assert mask is None or allows(mask, token_id)
                matcher.accept(token_id)
            assert matcher.is_satisfied

    def test_accept_then_rollback_changes_nothing(
        self, compiled: CompiledConstraint, sentences: list[list[int]]
    ) -> None:
        for sentence in sentences:
            matcher = compiled.open()
            for token_id in sentence:
                before = _state(matcher)
                matcher.accept(token_id)
                matcher.rollback(1)
                assert _state(matcher) == before
                matcher.accept(token_id)
            first = compiled.open()
            matcher.rollback(len(sentence))
            assert _state(matcher) == _state(first)

    def test_a_forbidden_token_is_refused_and_leaves_the_matcher_usable(
        self, compiled: CompiledConstraint, vocab_size: int, sentences: list[list[int]]
    ) -> None:
        matcher = compiled.open()
        mask = matcher.mask()
        assert mask is not None
        forbidden = next(token_id for token_id in range(vocab_size) if not allows(mask, token_id))
        with pytest.raises(ConstraintError):
            matcher.accept(forbidden)
        for token_id in sentences[0]:
            matcher.accept(token_id)
        assert matcher.is_satisfied

    def test_forced_tokens_are_the_only_allowed_ones(
        self, compiled: CompiledConstraint, sentences: list[list[int]]
    ) -> None:
        for sentence in sentences:
            matcher = compiled.open()
            for token_id in sentence:
                forced = list(matcher.forced())
                for forced_id in forced:
                    matcher.accept(forced_id)
                matcher.rollback(len(forced))
                assert not forced or forced[0] == token_id
                matcher.accept(token_id)

    def test_matchers_of_one_grammar_dont_share_state(
        self, compiled: CompiledConstraint, sentences: list[list[int]]
    ) -> None:
        one, other = compiled.open(), compiled.open()
        before = _state(other)
        one.accept(sentences[0][0])
        assert _state(other) == before

    def test_whatever_a_mask_allows_is_accepted(
        self, compiled: CompiledConstraint, vocab_size: int, eos_ids: frozenset[int]
    ) -> None:
        for walk in range(self.num_walks):
            draw = np.random.default_rng(walk)
            matcher = compiled.open()
            for _ in range(12):
                mask = matcher.mask()
                assert mask is not None
                allowed = [one for one in range(vocab_size) if allows(mask, one) and one not in eos_ids]
                if matcher.is_satisfied or not allowed:
                    break
                matcher.accept(int(draw.choice(allowed)))

    @pytest.fixture
    def eos_ids(self) -> frozenset[int]:
        return frozenset()


def _state(matcher: Constraint) -> tuple[bytes | None, bool, tuple[int, ...]]:
    mask = matcher.mask()
    return (None if mask is None else mask.tobytes(), matcher.is_satisfied, tuple(matcher.forced()))
