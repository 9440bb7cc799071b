"""Scripts that most tests need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phyla.testing.scripted.binding import Script
from phyla.testing.scripted.tokenizer import END, CharacterTokenizer


def replies(tokenizer: CharacterTokenizer, by_prompt: Mapping[str, str | Sequence[int]]) -> Script:
    """To each prompt its reply (as text or ids), then end of sequence. Other prompts end at once."""
    end = tokenizer.special_spellings[END]
    scripted = [
        (tokenizer.encode(prompt), tokenizer.encode(reply) if isinstance(reply, str) else list(reply))
        for prompt, reply in by_prompt.items()
    ]

    def script(history: Sequence[int]) -> int:
        for prompt, reply in scripted:
            said = list(history[len(prompt) :])
            if list(history[: len(prompt)]) == prompt and said == reply[: len(said)] and len(said) < len(reply):
                return reply[len(said)]
        return end

    return script


def repeat(token_ids: Sequence[int]) -> Script:
    """The same ids round and round, whatever the prompt: by the length of the history."""

    def script(history: Sequence[int]) -> int:
        return token_ids[len(history) % len(token_ids)]

    return script
