"""Chat completions on the wire."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from phyla.output import OutputParser, Piece, ReasoningDelta, TextDelta, ToolArgumentsDelta, ToolCallStart
from phyla.request import EngineEvent, Finished, Token

from phyla_server.answer import Answer
from phyla_server.encoder import DONE, frame
from phyla_server.errors import ApiError
from phyla_server.logprobs import LogprobsShape
from phyla_server.usage import UsageTotal


@dataclass(frozen=True)
class ChatShape:
    """What all chunks and the whole answer of one request share."""

    completion_id: str
    model_id: str
    num_samples: int
    create_parser: Callable[[], OutputParser]
    most_calls: int | None = None
    """Calls after which an answer is over; None for any number."""

    logprobs: LogprobsShape | None = None
    include_usage: bool = False
    created: int = field(default_factory=lambda: int(time.time()))

    def answers(self) -> list[Answer]:
        """One a sample, to be filled."""
        return [Answer(self.create_parser(), self.most_calls) for _ in range(self.num_samples)]

    def members(self, kind: str) -> dict[str, Any]:
        return {"id": self.completion_id, "object": kind, "created": self.created, "model": self.model_id}


class WholeChat:
    """The answer in one piece."""

    def __init__(self, shape: ChatShape) -> None:
        self._shape = shape
        self._answers = shape.answers()
        self._tokens: list[list[Token]] = [[] for _ in range(shape.num_samples)]
        self._reasons = ["stop"] * shape.num_samples
        self._usage = UsageTotal()

    def event(self, event: EngineEvent) -> None:
        if isinstance(event, Token):
            answer = self._answers[event.sample]
            if self._shape.logprobs is not None and not answer.is_over:
                self._tokens[event.sample].append(event)
            answer.token(event)
        elif isinstance(event, Finished):
            answer = self._answers[event.sample]
            answer.finish(event)
            self._reasons[event.sample] = answer.finish_reason(event)
            self._usage.add(event.request_id, event.usage, answer.num_reasoning_tokens)

    def has_all(self) -> bool:
        return all(answer.is_over for answer in self._answers)

    def body(self) -> dict[str, Any]:
        choices = [self._choice(index) for index in range(self._shape.num_samples)]
        return self._shape.members("chat.completion") | {"choices": choices, "usage": self._usage.block()}

    def _choice(self, index: int) -> dict[str, Any]:
        logprobs = self._shape.logprobs
        return {
            "index": index,
            "message": _message(self._answers[index]),
            "logprobs": logprobs.chat(self._tokens[index]) if logprobs is not None else None,
            "finish_reason": self._reasons[index],
        }


class ChatChunks:
    """The answer as chunks."""

    def __init__(self, shape: ChatShape) -> None:
        self._shape = shape
        self._answers = shape.answers()
        self._unsaid: list[list[Token]] = [[] for _ in range(shape.num_samples)]
        self._usage = UsageTotal()

    def opening(self) -> bytes:
        delta = {"role": "assistant", "content": ""}
        return b"".join(self._chunk(index, delta) for index in range(self._shape.num_samples))

    def event(self, event: EngineEvent) -> bytes:
        if isinstance(event, Token):
            answer = self._answers[event.sample]
            if self._shape.logprobs is not None and not answer.is_over:
                self._unsaid[event.sample].append(event)
            return self._pieces(event.sample, answer.token(event))
        if isinstance(event, Finished):
            return self._finish(event)
        return b""

    def has_all(self) -> bool:
        return all(answer.is_over for answer in self._answers)

    def failure(self, error: ApiError) -> bytes:
        return frame(error.body()) + DONE

    def closing(self) -> bytes:
        if not self._shape.include_usage:
            return DONE
        last = self._shape.members("chat.completion.chunk") | {"choices": [], "usage": self._usage.block()}
        return frame(last) + DONE

    def _finish(self, event: Finished) -> bytes:
        answer = self._answers[event.sample]
        said = self._pieces(event.sample, answer.finish(event))
        self._usage.add(event.request_id, event.usage, answer.num_reasoning_tokens)
        usage = None if self._shape.include_usage else self._usage.block()
        return said + self._chunk(event.sample, {}, answer.finish_reason(event), usage)

    def _pieces(self, sample: int, pieces: list[Piece]) -> bytes:
        deltas = (self._delta(sample, piece) for piece in pieces)
        return b"".join(self._chunk(sample, delta) for delta in deltas if delta is not None)

    def _delta(self, sample: int, piece: Piece) -> dict[str, Any] | None:
        if isinstance(piece, TextDelta):
            return {"content": piece.text}
        if isinstance(piece, ReasoningDelta):
            return {"reasoning": piece.text}
        if isinstance(piece, ToolCallStart):
            call = self._answers[sample].calls[piece.index]
            function = {"name": call.name, "arguments": ""}
            return {"tool_calls": [{"index": piece.index, "id": call.id, "type": "function", "function": function}]}
        if isinstance(piece, ToolArgumentsDelta):
            return {"tool_calls": [{"index": piece.index, "function": {"arguments": piece.json_text}}]}
        return None

    def _chunk(
        self, sample: int, delta: dict[str, Any], reason: str | None = None, usage: dict[str, Any] | None = None
    ) -> bytes:
        choice = {"index": sample, "delta": delta, "logprobs": self._logprobs(sample), "finish_reason": reason}
        chunk = self._shape.members("chat.completion.chunk") | {"choices": [choice]}
        # With include_usage every other chunk carries a null, as OpenAI's do.
        if usage is not None or self._shape.include_usage:
            chunk["usage"] = usage
        return frame(chunk)

    def _logprobs(self, sample: int) -> dict[str, Any] | None:
        """Of the tokens since the last chunk: held-back ones ride the chunk that their text comes with."""
        tokens = self._unsaid[sample]
        if self._shape.logprobs is None or not tokens:
            return None
        self._unsaid[sample] = []
        return self._shape.logprobs.chat(tokens)


def _message(answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text}
    if answer.reasoning:
        message["reasoning"] = answer.reasoning
    if answer.calls:
        message["tool_calls"] = [call.openai() for call in answer.calls]
        message["content"] = answer.text or None
    return message
