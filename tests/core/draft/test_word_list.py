"""The word list holds the contract that every constraint engine does."""

import pytest
from phyla.testing.constraint import ConstraintContract, WordList


class TestWordList(ConstraintContract):
    @pytest.fixture
    def vocab_size(self):
        return 40

    @pytest.fixture
    def eos_ids(self):
        return frozenset([1])

    @pytest.fixture
    def compiled(self, vocab_size, eos_ids):
        return WordList([[10, 11, 12], [10, 13], [20, 21, 22]], eos_ids=eos_ids, vocab_size=vocab_size)

    @pytest.fixture
    def sentences(self):
        return [[10, 11, 12], [10, 13], [20, 21, 22]]

    def test_a_word_with_one_way_on_is_forced(self, compiled):
        matcher = compiled.open()
        matcher.accept(20)

        assert matcher.forced() == [21, 22]
