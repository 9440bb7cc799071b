"""What the rest of Phyla needs of a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class TextSpan:
    """Characters [start, end) of a text."""

    start: int
    end: int


class Detokenizer(Protocol):
    """Text of one growing sequence of ids. State of one row; cheap to make."""

    def add(self, token_id: int) -> str:
        """Text that became certain with this token: "" while a character is incomplete, never a split one's U+FFFD."""
        ...

    def finish(self) -> str:
        """What was still incomplete, replacement characters and all."""
        ...


class Tokenizer(Protocol):
    """Thread-safe and immutable."""

    @property
    def vocab_size(self) -> int:
        """Highest id plus one, added tokens included."""
        ...

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids whose spelling is control, not text."""
        ...

    @property
    def eos_ids(self) -> frozenset[int]:
        """End-of-sequence ids that the tokenizer itself knows."""
        ...

    @property
    def bos_id(self) -> int | None: ...

    @property
    def fingerprint(self) -> str:
        """Digest of everything that decides ids; keys the caches of compiled grammars."""
        ...

    def encode(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        """Token ids.

        Args:
            add_special: let the tokenizer put its own BOS and the like around the text.
            parse_special: spellings of special tokens become those tokens; false encodes them as plain text.
        """
        ...

    def encode_with_literals(self, text: str, literals: Sequence[TextSpan]) -> list[int]:
        """As `encode`, but a spelling of a special token that touches one of the spans is plain text.

        Args:
            text: a rendered prompt.
            literals: characters that came from outside and must not become control tokens.
        """
        ...

    def least_tokens(self, text: str) -> int:
        """A lower bound of what `encode` gives, found without encoding; 0 where none is known."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        """Text of the whole sequence."""
        ...

    def id_of(self, piece: str) -> int | None:
        """The id spelt exactly so, or None."""
        ...

    def piece(self, token_id: int) -> str:
        """The raw vocabulary piece (byte-level spelling for byte-level models)."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that this id stands for; empty for special tokens."""
        ...

    @property
    def named_tokens(self) -> Mapping[str, str]:
        """Spellings that chat templates read by name: `bos_token`, `eos_token`, ..."""
        ...

    def detokenizer(self) -> Detokenizer: ...

    @property
    def special_spellings(self) -> Mapping[str, int]:
        """Spelling to id, for special and other added tokens that are parsed out of rendered text."""
        ...
