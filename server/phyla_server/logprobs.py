"""Log-probabilities in OpenAI's two shapes, and in the peer's for those who ask for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phyla.request import Token
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


class LogprobsShape:
    """Renders tokens for one request."""

    def __init__(self, tokenizer: Tokenizer, *, num_top: int, is_peer: bool = False) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._is_peer = is_peer

    def chat(self, tokens: Sequence[Token]) -> dict[str, Any]:
        """`{"content": [...]}`: one entry per generated token, reasoning and markup included."""
        if self._is_peer:
            return {"content": [self._peer_entry(token) for token in tokens if token.logprobs is not None]}
        return {"content": [self._entry(token) for token in tokens if token.logprobs is not None], "refusal": None}

    def text(self, tokens: Sequence[Token], offset: int) -> dict[str, Any]:
        """The completions form, which the peer doesn't have. `offset`: characters of text before these tokens."""
        if self._is_peer:
            return self.chat(tokens)
        known = [(token, token.logprobs) for token in tokens if token.logprobs is not None]
        spellings = [self._spelling(token.token_id) for token, _ in known]
        offsets = [offset + sum(map(len, spellings[:index])) for index in range(len(spellings))]
        tops = [{self._spelling(one): value for one, value in given.top} for _, given in known]
        return {
            "tokens": spellings,
            "token_logprobs": [given.logprob for _, given in known],
            "top_logprobs": tops if self._num_top else None,
            "text_offset": offsets,
        }

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
        raw = self._tokenizer.token_bytes(token_id)
        return raw.decode("utf-8", errors="replace") if raw else self._tokenizer.piece(token_id)
