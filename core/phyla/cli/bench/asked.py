"""What a load asks: random prompts of given lengths, or those of a file."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from phyla.errors import UsageError

Endpoint = Literal["completions", "chat"]

WORDS = ("river", "stone", "seven", "under", "light", "paper", "north", "quiet", "green", "market", "window", "early")


@dataclass(frozen=True)
class Asked:
    """One request before it is sent."""

    prompt: str | Sequence[int] | Sequence[Mapping[str, Any]]
    """Text, token ids, or messages."""

    num_output: int
    """Most tokens of the answer."""

    num_input: int | None = None
    """Prompt tokens where they are known beforehand; the server's count wins."""

    def body(self, endpoint: Endpoint, model: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """What is sent: streamed, with usage at the end, and `fields` on top."""
        body: dict[str, Any] = {"model": model, "max_tokens": self.num_output, "temperature": 0.0}
        body |= {"stream": True, "stream_options": {"include_usage": True}, **fields}
        if endpoint == "completions":
            return body | {"prompt": self.prompt}
        messages = [{"role": "user", "content": self.prompt}] if isinstance(self.prompt, str) else self.prompt
        return body | {"messages": messages}


@dataclass(frozen=True)
class RandomPrompts:
    """Random prompts, the same for the same seed.

    Token ids for text completions; for chats words, whose tokens the server counts.
    """

    num_input: int
    num_output: int
    range_ratio: float = 0.0
    """Both lengths are drawn from up to so much less to so much more."""

    ids: tuple[int, int] = (3, 500)
    """The lowest and the highest; nearly every vocabulary has these."""

    def draw(self, count: int, endpoint: Endpoint, seed: int) -> list[Asked]:
        """So many requests."""
        drawn = random.Random(f"prompts {seed}")
        return [self._one(endpoint, drawn) for _ in range(count)]

    def _one(self, endpoint: Endpoint, drawn: random.Random) -> Asked:
        num_input, num_output = self._length(self.num_input, drawn), self._length(self.num_output, drawn)
        if endpoint == "chat":
            return Asked(" ".join(drawn.choice(WORDS) for _ in range(num_input)), num_output)
        return Asked([drawn.randint(*self.ids) for _ in range(num_input)], num_output, num_input)

    def _length(self, mean: int, drawn: random.Random) -> int:
        low, high = int(mean * (1 - self.range_ratio)), int(mean * (1 + self.range_ratio))
        return max(drawn.randint(low, high), 1)


def read_prompts(path: Path, count: int, endpoint: Endpoint, num_output: int) -> list[Asked]:
    """Requests from a file, from its start again where it has fewer.

    A line is JSON with `prompt` (text, or token ids) or `messages`, and maybe `output_tokens`; or text as it is.

    Raises:
        UsageError: the file can't be read, has no prompts, or has one that the endpoint doesn't take.
    """
    try:
        lines = [line for line in path.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--prompts {path} can't be read as UTF-8 text: {error}.") from error
    if not lines:
        raise UsageError(f"--prompts {path} has no prompts.")
    read = [_read(line, f"--prompts {path.name}, line {number}", endpoint, num_output) for number, line in _used(lines)]
    return list(itertools.islice(itertools.cycle(read), count))


def _used(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    return enumerate(lines, 1)


def _read(line: str, where: str, endpoint: Endpoint, num_output: int) -> Asked:
    if not line.lstrip().startswith("{"):
        return Asked(line, num_output)
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{where} isn't JSON: {error}.") from error
    prompt = fields.get("messages", fields.get("prompt"))
    output = fields.get("output_tokens", num_output)
    if not prompt or not isinstance(prompt, str | list) or not isinstance(output, int) or output < 1:
        raise UsageError(f'{where} isn\'t a prompt: {{"prompt": TEXT}} or {{"messages": [...]}}, and "output_tokens".')
    if ("messages" in fields or isinstance(prompt, list)) and ("messages" in fields) != (endpoint == "chat"):
        raise UsageError(
            f"{where} has {'messages' if 'messages' in fields else 'token ids'}; use the other --endpoint."
        )
    return Asked(prompt, output)
