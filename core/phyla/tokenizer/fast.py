"""Tokenizers that a `tokenizer.json` describes, run by the `tokenizers` library."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from typing import Any

import tokenizers

from phyla.errors import TokenizerError
from phyla.tokenizer.coverage import Coverage, coverage
from phyla.tokenizer.detokenizer import ByteDetokenizer, WindowDetokenizer
from phyla.tokenizer.literal import LiteralEncoder, encoded_ids
from phyla.tokenizer.pieces import piece_spelling
from phyla.tokenizer.tokenizer import Detokenizer, TextSpan

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Special tokens that a tokenizer config names, and templates read by these names."""


class FastTokenizer:
    """Text to ids and back for any `tokenizer.json`, whatever class its config names. Immutable, thread-safe."""

    def __init__(self, definition: str, config: Mapping[str, Any] | None = None) -> None:
        """Take over a tokenizer.

        Args:
            definition: the text of `tokenizer.json`.
            config: `tokenizer_config.json`: named special tokens, whether BOS and EOS are added.

        Raises:
            TokenizerError: the library can't read the definition.
        """
        self._config = dict(config or {})
        self.definition = definition
        try:
            self._library = tokenizers.Tokenizer.from_str(definition)
        except Exception as error:  # the library raises bare Exception
            raise TokenizerError(f"tokenizer.json can't be used: {error}. Fetch the model again.") from error
        # A definition may carry the truncation of its training run: prompts must come through whole.
        self._library.no_truncation()
        self._library.no_padding()
        self.named_tokens: Mapping[str, str] = _named_tokens(self._config)
        self._declare_special()
        added = self._library.get_added_tokens_decoder()
        self._added_text = {token_id: token.content for token_id, token in added.items()}
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.special_spellings: Mapping[str, int] = {text: token_id for token_id, text in self._added_text.items()}
        self.vocab_size = max(self._library.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self._spelling = piece_spelling(json.loads(definition))
        self._literal = LiteralEncoder(self._library, self.special_spellings)

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the definition and of what the config says about BOS and EOS."""
        flags = [self._config.get("add_bos_token"), self._config.get("add_eos_token"), self.named_tokens]
        return sha256(self.definition.encode() + json.dumps(flags, sort_keys=True).encode()).hexdigest()

    @property
    def eos_ids(self) -> frozenset[int]:
        eos = self.id_of(self.named_tokens.get("eos_token", ""))
        return frozenset() if eos is None else frozenset([eos])

    @property
    def bos_id(self) -> int | None:
        return self.id_of(self.named_tokens.get("bos_token", ""))

    def encode(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        if not parse_special:
            ids = self._literal.encode(text, [TextSpan(0, len(text))])
            return [self._automatic_bos, *ids] if add_special and self._automatic_bos is not None else ids
        ids = encoded_ids(self._library, text, add_special)
        return self._with_one_bos(ids) if add_special else ids

    def encode_with_literals(self, text: str, literals: Sequence[TextSpan]) -> list[int]:
        if not literals:
            return self.encode(text)
        return self._literal.encode(text, literals)

    def least_tokens(self, text: str) -> int:
        return 0 if self._coverage is None else self._coverage.least_tokens(text)

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        detokenizer = self.detokenizer()
        kept = [token_id for token_id in ids if not (skip_special and token_id in self.special_ids)]
        return "".join([*(detokenizer.add(token_id) for token_id in kept), detokenizer.finish()])

    def id_of(self, piece: str) -> int | None:
        found = self._library.token_to_id(piece)
        return None if found is None else int(found)

    def piece(self, token_id: int) -> str:
        piece = self._library.id_to_token(token_id)
        if piece is None:
            raise TokenizerError(f"There is no token {token_id}; ids run from 0 to {self.vocab_size - 1}.")
        return str(piece)

    def token_bytes(self, token_id: int) -> bytes:
        return b"" if token_id in self.special_ids else self._spelled_bytes(token_id)

    def detokenizer(self) -> Detokenizer:
        if self._spelling is None:
            return WindowDetokenizer(lambda ids: str(self._library.decode(list(ids), skip_special_tokens=False)))
        return ByteDetokenizer(self._spelled_bytes, strips_leading_space=self._spelling.strips_leading_space)

    def _spelled_bytes(self, token_id: int) -> bytes:
        """The bytes that decoding gives, special tokens spelled out; nothing for an id outside the vocabulary."""
        added = self._added_text.get(token_id)
        if added is not None:
            return added.encode()
        # Heads are padded to round sizes, so a model can emit ids that no vocabulary has.
        piece = self._library.id_to_token(token_id)
        if piece is None:
            return b""
        if self._spelling is None:
            return str(self._library.decode([token_id], skip_special_tokens=False)).encode()
        return self._spelling.to_bytes(piece)

    def _declare_special(self) -> None:
        """Named special tokens count as special even where the definition forgot to say so."""
        known = {token.content: token.special for token in self._library.get_added_tokens_decoder().values()}
        extra = [entry for entry in self._config.get("additional_special_tokens") or [] if isinstance(entry, str)]
        names = [*self.named_tokens.values(), *extra]
        missing = [name for name in names if not known.get(name, False) and self._library.token_to_id(name) is not None]
        if missing:
            self._library.add_special_tokens(missing)

    @cached_property
    def _coverage(self) -> Coverage | None:
        # Parsing the definition takes some tenths of a second, which only long prompts need: a server does it at start.
        return coverage(json.loads(self.definition))

    @cached_property
    def _automatic_bos(self) -> int | None:
        """The BOS put in front of raw text: as the config says, else as the definition does."""
        asked = self._config.get("add_bos_token")
        if isinstance(asked, bool):
            return self.bos_id if asked else None
        first = self._library.encode("", add_special_tokens=True).ids[:1]
        return self.bos_id if first == [self.bos_id] else None

    def _with_one_bos(self, ids: list[int]) -> list[int]:
        """Exactly one BOS where one belongs, also when the text already spelled it."""
        bos = self.bos_id
        num_bos = next((index for index, token_id in enumerate(ids) if token_id != bos), len(ids))
        if self._automatic_bos is not None:
            return [self._automatic_bos, *ids[num_bos:]]
        return ids if self._config.get("add_bos_token") is None else ids[num_bos:]


def _named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` and its like by name, from a text or an added-token object."""
    named: dict[str, str] = {}
    for name in NAMED_TOKENS:
        value = config.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str) and value:
            named[name] = value
    return named
