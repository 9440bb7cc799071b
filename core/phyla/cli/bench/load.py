"""Sending the requests of a load, and the times at which their answers come."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from phyla.cli.bench.asked import Asked, Endpoint
from phyla.cli.bench.http_stream import HttpFailed, HttpTarget

PATHS: Mapping[Endpoint, str] = {"completions": "/completions", "chat": "/chat/completions"}
DONE = "[DONE]"


@dataclass
class Answered:
    """What became of one request; times are seconds."""

    num_input: int = 0
    num_output: int = 0
    """As the server counts, else pieces of text."""

    ttft: float = 0.0
    """From sending to the first text."""

    latency: float = 0.0
    """From sending to the last text."""

    gaps: list[float] = field(default_factory=list)
    """Between pieces of text: a piece may hold several tokens."""

    text: str = ""
    error: str | None = None


@dataclass(frozen=True)
class Load:
    """How requests arrive."""

    request_rate: float = float("inf")
    """A second, as a Poisson process; infinite: all at once."""

    max_concurrency: int | None = None
    """Requests under way; the next ones wait for one to end."""

    seed: int = 0
    timeout_seconds: float = 600.0
    """Of one request."""

    def arrivals(self, count: int) -> Iterator[float]:
        """Seconds after the start at which each request arrives; the first one at once."""
        drawn = random.Random(f"arrivals {self.seed}")
        at = 0.0
        for _ in range(count):
            yield at
            at += 0.0 if self.request_rate == float("inf") else drawn.expovariate(self.request_rate)


@dataclass(frozen=True)
class Client:
    """Sends requests of one kind to one server."""

    target: HttpTarget
    endpoint: Endpoint
    model: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Set in every body."""

    async def ask(self, asked: Asked, timeout_seconds: float) -> Answered:
        """Send one request and read its whole answer. Whatever goes wrong is in the result."""
        answered = Answered(num_input=asked.num_input or 0)
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._stream(asked, answered)
        except (HttpFailed, OSError) as error:
            # A timeout is an OSError too, and has no message.
            answered.error = str(error) or f"no end within {timeout_seconds:g} seconds"
        return answered

    async def _stream(self, asked: Asked, answered: Answered) -> None:
        body = asked.body(self.endpoint, self.model, self.fields)
        num_pieces, usage, is_done = 0, None, False
        sent = last = time.perf_counter()
        async with self.target.send("POST", PATHS[self.endpoint], body) as answer:
            async for data in answer.events():
                now = time.perf_counter()
                if data == DONE:
                    is_done = True
                    continue
                frame = _frame(data)
                usage = frame.get("usage") or usage
                text = _text(frame)
                if text:
                    if num_pieces:
                        answered.gaps.append(now - last)
                    else:
                        answered.ttft = now - sent
                    num_pieces, last = num_pieces + 1, now
                    answered.text += text
        if not is_done:
            raise HttpFailed("the stream ended early")
        answered.latency = last - sent
        answered.num_output = num_pieces
        if isinstance(usage, dict):
            answered.num_output = int(usage.get("completion_tokens", num_pieces))
            answered.num_input = int(usage.get("prompt_tokens", answered.num_input))


async def run_load(
    client: Client, asked: Sequence[Asked], load: Load, advance: Callable[[str], None]
) -> tuple[list[Answered], float]:
    """Send all requests as the load says.

    Returns:
        What became of each, in order, and the seconds from the first sending to the last end.
    """
    gate = asyncio.Semaphore(load.max_concurrency) if load.max_concurrency is not None else None

    async def one(request: Asked) -> Answered:
        async with _through(gate):
            answered = await client.ask(request, load.timeout_seconds)
        advance("" if answered.error is None else f"failed: {answered.error}")
        return answered

    began = time.perf_counter()
    tasks = []
    for request, at in zip(asked, load.arrivals(len(asked)), strict=True):
        await asyncio.sleep(max(began + at - time.perf_counter(), 0.0))
        tasks.append(asyncio.create_task(one(request)))
    answers = await asyncio.gather(*tasks)
    return list(answers), time.perf_counter() - began


@asynccontextmanager
async def _through(gate: asyncio.Semaphore | None) -> AsyncIterator[None]:
    if gate is None:
        yield
        return
    async with gate:
        yield


def _frame(data: str) -> dict[str, Any]:
    """One event.

    Raises:
        HttpFailed: it says that the answer failed, or isn't JSON.
    """
    try:
        frame = json.loads(data)
    except ValueError as error:
        raise HttpFailed(f"an event isn't JSON: {data[:80]!r}") from error
    if not isinstance(frame, dict):
        raise HttpFailed(f"an event isn't an object: {data[:80]!r}")
    if "error" in frame:
        stated = frame["error"]
        raise HttpFailed(str(stated.get("message", stated)) if isinstance(stated, dict) else str(stated))
    return frame


def _text(frame: Mapping[str, Any]) -> str:
    """Whatever of the answer the event brings: text, reasoning, or arguments of a tool call."""
    choices = frame.get("choices") or []
    if not choices:
        return ""
    delta = choices[0].get("delta")
    if delta is None:
        return choices[0].get("text") or ""
    calls = "".join((one.get("function") or {}).get("arguments") or "" for one in delta.get("tool_calls") or [])
    return (delta.get("reasoning_content") or delta.get("reasoning") or "") + (delta.get("content") or "") + calls
