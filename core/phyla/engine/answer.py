"""The text of one row: ids to pieces, stop strings, and the events that leave the engine."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from phyla.engine.stops import StopMatch, StopMatcher
from phyla.request import Request, Token, TokenLogprobs
from phyla.tokenizer import Tokenizer


@dataclass(frozen=True)
class Ending:
    """What is left to say when the last token is known."""

    events: list[Token]
    text: str = ""
    """Text that no event carries: bytes of a character that was never completed."""


class Answer:
    """Detokenises one row and holds events back while their text may turn out to belong to a stop string.

    A held event leaves whole and once: either its text became certain, or it is cut where a stop string begins.
    """

    def __init__(self, request: Request, sample: int, tokenizer: Tokenizer) -> None:
        self._request_id = request.request_id
        self._sample = sample
        self._tokenizer = tokenizer
        self._detokenizer = tokenizer.detokenizer()
        self._stops = StopMatcher(request.stop)
        self._held: deque[Token] = deque()
        self._num_sent = 0
        """Characters in events that left."""

        self.stop_string: str | None = None

    def add(self, token_id: int, logprobs: TokenLogprobs | None = None) -> list[Token]:
        """Take one emitted token; returns the events that can leave. `stop_string` is set once one matched."""
        is_special = token_id in self._tokenizer.special_ids
        text = self._tokenizer.piece(token_id) if is_special else self._detokenizer.add(token_id)
        self._held.append(Token(self._request_id, token_id, text, is_special, logprobs, self._sample))
        return self._after(self._stops.add(text))

    def finish(self, is_cut: bool = False) -> Ending:
        """The row ended without a stop string firing: flush whatever was held.

        Args:
            is_cut: its cap ended it. The character that the cap fell into is left out then: it isn't a broken one.
        """
        tail = self._detokenizer.finish()
        if is_cut:
            tail = tail.rstrip("\N{REPLACEMENT CHARACTER}")
        match = self._stops.add(tail) or self._stops.finish()
        events = self._after(match)
        end = match.position if match else self._stops.num_certain
        return Ending(events, tail[: max(0, end - self._num_sent)])

    def _after(self, match: StopMatch | None) -> list[Token]:
        if match is None:
            return self._released(self._stops.num_certain)
        self.stop_string = match.stop
        events = self._released(match.position)
        for held in self._held:
            kept = held.text[: max(0, match.position - self._num_sent)]
            self._num_sent += len(kept)
            events.append(replace(held, text=kept))
        self._held.clear()
        return events

    def _released(self, num_certain: int) -> list[Token]:
        events = []
        while self._held and self._num_sent + len(self._held[0].text) <= num_certain:
            event = self._held.popleft()
            self._num_sent += len(event.text)
            events.append(event)
        return events
