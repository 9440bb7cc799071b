"""Text completions on the wire."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from phyla.request import EngineEvent, Finished, Token

from phyla_server.encoder import DONE, frame
from phyla_server.errors import ApiError
from phyla_server.logprobs import LogprobsShape, TextPosition
from phyla_server.usage import UsageTotal


@dataclass(frozen=True)
class TextShape:
    """What all chunks and the whole answer of one request share."""

    completion_id: str
    model_id: str
    first_index: Mapping[str, int]
    """Engine request id to the index of its first choice."""

    echoes: Sequence[str]
    """Per choice: what is put in front of it."""

    logprobs: LogprobsShape | None = None
    include_usage: bool = False
    gives_ids: bool = False
    """Choices carry `token_ids`: the model has no tokenizer, so that there is no text."""

    created: int = field(default_factory=lambda: int(time.time()))

    def members(self) -> dict[str, Any]:
        return {
            "id": self.completion_id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model_id,
        }

    def ids(self, tokens: Sequence[Token]) -> dict[str, Any]:
        """What a choice says of these tokens where text can't."""
        return {"token_ids": [token.token_id for token in tokens]} if self.gives_ids else {}

    def index(self, event: Token | Finished) -> int:
        return self.first_index[event.request_id] + event.sample


class WholeText:
    """The completions in one piece."""

    def __init__(self, shape: TextShape) -> None:
        self._shape = shape
        self._texts = [[echo] for echo in shape.echoes]
        self._tokens: list[list[Token]] = [[] for _ in shape.echoes]
        self._reasons = ["stop" for _ in shape.echoes]
        self._usage = UsageTotal()

    def event(self, event: EngineEvent) -> None:
        if isinstance(event, Token):
            index = self._shape.index(event)
            self._texts[index].append(_said(event))
            if self._shape.logprobs is not None or self._shape.gives_ids:
                self._tokens[index].append(event)
        elif isinstance(event, Finished):
            index = self._shape.index(event)
            self._texts[index].append(event.text)
            self._reasons[index] = _reason(event)
            self._usage.add(event.request_id, event.usage)

    def has_all(self) -> bool:
        return False

    def body(self) -> dict[str, Any]:
        choices = [self._choice(index) for index in range(len(self._texts))]
        return self._shape.members() | {"choices": choices, "usage": self._usage.block()}

    def _choice(self, index: int) -> dict[str, Any]:
        logprobs = self._shape.logprobs
        position = TextPosition(len(self._shape.echoes[index]))
        choice = {
            "index": index,
            "text": "".join(self._texts[index]),
            "logprobs": logprobs.text(self._tokens[index], position) if logprobs is not None else None,
            "finish_reason": self._reasons[index],
        }
        return choice | self._shape.ids(self._tokens[index])


class TextChunks:
    """The completions as chunks; there is no opening chunk."""

    def __init__(self, shape: TextShape) -> None:
        self._shape = shape
        self._unsaid: list[list[Token]] = [[] for _ in shape.echoes]
        self._positions = [TextPosition(len(echo)) for echo in shape.echoes]
        self._usage = UsageTotal()

    def opening(self) -> bytes:
        return b"".join(self._chunk(index, echo) for index, echo in enumerate(self._shape.echoes) if echo)

    def event(self, event: EngineEvent) -> bytes:
        if isinstance(event, Token):
            index = self._shape.index(event)
            if self._shape.logprobs is not None:
                self._unsaid[index].append(event)
            text = _said(event)
            return self._chunk(index, text, tokens=[event]) if text or self._shape.gives_ids else b""
        if isinstance(event, Finished):
            return self._finish(event)
        return b""

    def has_all(self) -> bool:
        return False

    def failure(self, error: ApiError) -> bytes:
        return frame(error.body()) + DONE

    def closing(self) -> bytes:
        if not self._shape.include_usage:
            return DONE
        return frame(self._shape.members() | {"choices": [], "usage": self._usage.block()}) + DONE

    def _finish(self, event: Finished) -> bytes:
        index = self._shape.index(event)
        self._usage.add(event.request_id, event.usage)
        said = self._chunk(index, event.text) if event.text else b""
        usage = None if self._shape.include_usage else self._usage.block()
        return said + self._chunk(index, "", _reason(event), usage)

    def _chunk(
        self,
        index: int,
        text: str,
        reason: str | None = None,
        usage: dict[str, Any] | None = None,
        tokens: Sequence[Token] = (),
    ) -> bytes:
        choice = {"index": index, "text": text, "logprobs": self._logprobs(index), "finish_reason": reason}
        chunk = self._shape.members() | {"choices": [choice | self._shape.ids(tokens)]}
        if usage is not None or self._shape.include_usage:
            chunk["usage"] = usage
        return frame(chunk)

    def _logprobs(self, index: int) -> dict[str, Any] | None:
        tokens = self._unsaid[index]
        if self._shape.logprobs is None or not tokens:
            return None
        self._unsaid[index] = []
        return self._shape.logprobs.text(tokens, self._positions[index])


def _said(event: Token) -> str:
    return "" if event.special else event.text


def _reason(event: Finished) -> str:
    return "length" if event.reason == "length" else "stop"
