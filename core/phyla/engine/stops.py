"""Stop strings over a text that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class StopMatch:
    """The earliest stop string of the whole text."""

    position: int
    """Characters of the whole text before it."""

    stop: str


class StopMatcher:
    """Finds the earliest occurrence of any stop string, whatever pieces the text comes in.

    `num_certain` only grows: text before it can't belong to a stop string any more and may be sent.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.num_certain = 0

    def add(self, piece: str) -> StopMatch | None:
        """Look at more text; a match is final, nothing may be added after it."""
        if not self._stops:
            self.num_certain += len(piece)
            return None
        self._held += piece
        match = self._earliest()
        starting = self._earliest_start()
        # An earlier, longer stop string that may still be completed goes first.
        if match is not None and (starting is None or starting >= match.position - self.num_certain):
            return match
        self._release(len(self._held) if starting is None else starting)
        return None

    def finish(self) -> StopMatch | None:
        """The text is over: what was waiting for a longer match is decided; the rest is certain."""
        match = self._earliest()
        if match is None:
            self._release(len(self._held))
        return match

    def _earliest(self) -> StopMatch | None:
        found = [(self._held.find(stop), stop) for stop in self._stops]
        position, stop = min(((at, stop) for at, stop in found if at >= 0), key=lambda one: one[0], default=(-1, ""))
        return None if position < 0 else StopMatch(self.num_certain + position, stop)

    def _earliest_start(self) -> int | None:
        """Where in the held text the first unfinished stop string may begin."""
        for start in range(len(self._held)):
            rest = self._held[start:]
            if any(len(rest) < len(stop) and stop.startswith(rest) for stop in self._stops):
                return start
        return None

    def _release(self, num_characters: int) -> None:
        self._held = self._held[num_characters:]
        self.num_certain += num_characters
