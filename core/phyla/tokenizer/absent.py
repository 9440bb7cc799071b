"""A model without a tokenizer: token ids in, token ids out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from phyla.errors import TokenizerError
from phyla.tokenizer.tokenizer import TextSpan, Tokenizer


class AbsentTokenizer:
    """Stands where a tokenizer would be: ids have no text, and text has no ids.

    Args:
        owner: the model's id, for messages.
        vocab_size: of the model: every id may be sent and may come.
        reason: what is missing and how to get it; sentences.
    """

    def __init__(self, owner: str, vocab_size: int, reason: str) -> None:
        self.vocab_size = vocab_size
        self.special_ids: frozenset[int] = frozenset()
        self.eos_ids: frozenset[int] = frozenset()
        self.bos_id: int | None = None
        self.fingerprint = "absent"
        self.named_tokens: Mapping[str, str] = MappingProxyType({})
        self.special_spellings: Mapping[str, int] = MappingProxyType({})
        self.reason = (
            f"{owner} can't read or write text: {reason} Without one it takes and gives token ids: "
            "generate([1, 2, 3]), or a prompt of ids to /v1/completions."
        )

    def encode(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        """Raise TokenizerError: there is nothing to encode with."""
        raise TokenizerError(self.reason)

    def encode_with_literals(self, text: str, literals: Sequence[TextSpan]) -> list[int]:
        """As `encode`."""
        raise TokenizerError(self.reason)

    def least_tokens(self, text: str) -> int:
        return 0

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        """Nothing."""
        return ""

    def id_of(self, piece: str) -> int | None:
        return None

    def piece(self, token_id: int) -> str:
        """How log-probabilities name an id that has no spelling."""
        return f"token_id:{token_id}"

    def token_bytes(self, token_id: int) -> bytes:
        return b""

    def detokenizer(self) -> SilentDetokenizer:
        return SilentDetokenizer()


class SilentDetokenizer:
    """No token has a text."""

    def add(self, token_id: int) -> str:
        return ""

    def finish(self) -> str:
        return ""


def why_no_text(tokenizer: Tokenizer) -> str | None:
    """Why ids of this tokenizer have no text and what to do about it, or None where they have."""
    return tokenizer.reason if isinstance(tokenizer, AbsentTokenizer) else None
