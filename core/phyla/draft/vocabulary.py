"""What a grammar's compiler knows of a tokenizer, as plain data that fits through a pipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from phyla.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Vocabulary:
    """Immutable."""

    tokens: tuple[bytes, ...]
    """What each id stands for; empty for special tokens."""

    special_spellings: Mapping[str, int]
    """Special tokens that have a spelling in a prompt, by it."""

    eos_ids: frozenset[int]
    """Ids below `len(tokens)` that end a sequence."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, eos_ids: frozenset[int]) -> Self:
        """Reads every token: tenths of a second for a large vocabulary."""
        return cls(
            tokens=tuple(tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)),
            special_spellings={
                spelling: token_id
                for spelling, token_id in tokenizer.special_spellings.items()
                if token_id in tokenizer.special_ids
            },
            eos_ids=frozenset(one for one in eos_ids if one < tokenizer.vocab_size),
        )

    def to_json(self) -> dict[str, Any]:
        """Facts that `from_json` reads again."""
        return {
            "tokens": [one.decode("latin-1") for one in self.tokens],
            "special_spellings": dict(self.special_spellings),
            "eos_ids": sorted(self.eos_ids),
        }

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> Self:
        return cls(
            tokens=tuple(one.encode("latin-1") for one in facts["tokens"]),
            special_spellings=facts["special_spellings"],
            eos_ids=frozenset(facts["eos_ids"]),
        )
