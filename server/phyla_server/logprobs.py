"""Log-probabilities in OpenAI's two shapes, and in the peer's for those who ask for it."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from phyla.request import Token, TokenLogprobs
from phyla.tokenizer import Tokenizer

from phyla_server.fields import Fields

MAX_TOP = 20
MAX_TOP_PEER = 11


def read_text_logprobs(fields: Fields) -> int | None:
    """The older completions form: a count, or `true` for the chosen token's alone."""
    value = fields.body.get("logprobs")
    if isinstance(value, bool):
        return 0 if value else None
    return fields.integer("logprobs", least=0, most=MAX_TOP)


def with_text_logprobs(fields: Fields) -> dict[str, Any]:
    """The body with that count as chat's two fields."""
    num_top = read_text_logprobs(fields)
    return {**fields.body, "logprobs": num_top is not None, "top_logprobs": num_top or -1}


def wants_token_ids(fields: Fields) -> bool:
    """vLLM's way to ask for ids where texts may not tell tokens apart."""
    return fields.flag("return_tokens_as_token_ids") or False


class LogprobsShape:
    """Renders tokens for one request."""

    def __init__(self, tokenizer: Tokenizer, *, num_top: int, is_peer: bool = False, as_ids: bool = False) -> None:
        """Render nothing yet.

        Args:
            tokenizer: of the model.
            num_top: how many of the likeliest tokens are told.
            is_peer: in the shape of mlx_lm.server.
            as_ids: tokens are spelt `token_id:7`.
        """
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._is_peer = is_peer
        self._as_ids = as_ids

    def chat(self, tokens: Sequence[Token]) -> dict[str, Any]:
        """`{"content": [...]}`: one entry per generated token, reasoning and markup included."""
        if self._is_peer:
            return {"content": [self._peer_entry(token) for token in tokens if token.logprobs is not None]}
        return {"content": [self._entry(token) for token in tokens if token.logprobs is not None], "refusal": None}

    def text(self, tokens: Sequence[Token], position: TextPosition) -> dict[str, Any]:
        """The completions form, which the peer doesn't have.

        Args:
            tokens: those to tell of.
            position: where the first of them stands; moved past the last.
        """
        if self._is_peer:
            return self.chat(tokens)
        known = [(token.token_id, token.logprobs) for token in tokens if token.logprobs is not None]
        return {
            "tokens": [self._key(token_id) for token_id, _ in known],
            "token_logprobs": [given.logprob for _, given in known],
            "top_logprobs": [self._top(*one) for one in known] if self._num_top else None,
            "text_offset": [position.move_past(self._tokenizer.token_bytes(token_id)) for token_id, _ in known],
        }

    def _top(self, token_id: int, given: TokenLogprobs) -> dict[str, float]:
        """The likeliest by their spelling, and the chosen one if it isn't among them."""
        by_key: dict[str, float] = {}
        for one, value in (*given.top, (token_id, given.logprob)):
            # The likeliest come first: of two that are spelt alike it stays.
            by_key.setdefault(self._key(one), value)
        return by_key

    def _entry(self, token: Token) -> dict[str, Any]:
        assert token.logprobs is not None
        entry = self._candidate(token.token_id, token.logprobs.logprob)
        return entry | {"top_logprobs": [self._candidate(*one) for one in token.logprobs.top[: self._num_top]]}

    def _candidate(self, token_id: int, logprob: float) -> dict[str, Any]:
        raw = self._tokenizer.token_bytes(token_id)
        return {"token": self._spelling(token_id), "logprob": logprob, "bytes": list(raw) if raw else None}

    def _peer_entry(self, token: Token) -> dict[str, Any]:
        assert token.logprobs is not None
        if not self._num_top:
            return {"id": token.token_id, "logprob": token.logprobs.logprob}
        top = [
            {"id": one, "token": self._tokenizer.piece(one), "logprob": value}
            for one, value in token.logprobs.top[: self._num_top]
        ]
        return top[0] | {"top_logprobs": top}

    def _spelling(self, token_id: int) -> str:
        if self._as_ids:
            return f"token_id:{token_id}"
        raw = self._tokenizer.token_bytes(token_id)
        return raw.decode("utf-8", errors="replace") if raw else self._tokenizer.piece(token_id)

    def _key(self, token_id: int) -> str:
        """What tells tokens apart where there are no `bytes` beside it: pieces of characters are spelt as bytes."""
        spelling = self._spelling(token_id)
        if self._as_ids or "\ufffd" not in spelling:
            return spelling
        raw = self._tokenizer.token_bytes(token_id)
        return spelling if _is_text(raw) else "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


class TextPosition:
    """Where in a text its tokens stand, in characters: one counts once all its bytes are there."""

    def __init__(self, offset: int = 0) -> None:
        self._offset = offset
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def move_past(self, token: bytes) -> int:
        """Where this token begins; afterwards the next one's place."""
        begins = self._offset
        self._offset += len(self._decoder.decode(token))
        return begins


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
