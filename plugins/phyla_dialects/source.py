"""A growing text that grammars read from, and the reading steps they share.

A grammar is a generator: it yields pieces for the reader, or None when it needs more text. It is resumed when more
came, so it is written as if all the text were there. Nothing it reads is lost: `Source.since_mark` gives back what a
failed attempt consumed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from phyla.output import Piece

MAX_NAME_CHARS = 256
"""Longest name of a function or parameter that is waited for."""

ResultT = TypeVar("ResultT")
Steps = Generator[Piece | None, None, ResultT]
"""Yields pieces, or None for "more text, please"; returns what the step read."""


class Source:
    """Text not read yet, whether more may come, and what was read since the last mark."""

    def __init__(self) -> None:
        self.text = ""
        self.is_closed = False
        self.is_cut = False
        """Closed because a cap was reached: the text ends where it wouldn't have."""

        self.has_run_out = False
        """Whether the last step that failed did so for want of text: what it read might have gone on as it should."""

        self._read: list[str] = []

    def close(self, is_cut: bool) -> None:
        """No more text will come."""
        self.is_closed, self.is_cut = True, is_cut

    def add(self, text: str) -> None:
        self.text += text

    def take(self, num_chars: int) -> str:
        """Read that many characters."""
        taken, self.text = self.text[:num_chars], self.text[num_chars:]
        self._read.append(taken)
        return taken

    def mark(self) -> None:
        """Start a new attempt: `since_mark` will give what is read from here on."""
        self._read.clear()
        self.has_run_out = False

    def since_mark(self) -> str:
        return "".join(self._read)

    def runs_out(self) -> bool:
        """Whether a step that wants more text will never get any."""
        self.has_run_out = self.is_closed
        return self.is_closed

    def failed(self, opener: str) -> str:
        """An attempt that came to nothing, as the text that it is: all that was read since the mark, opener in front.

        Nothing where a cap cut it short, since it was on its way to become a call.
        """
        is_dropped = self.is_cut and self.has_run_out
        self.drop_unfinished()
        return "" if is_dropped else opener + self.since_mark()

    def drop_unfinished(self) -> None:
        """Forget the rest if a cap cut it short inside of markup."""
        if self.is_cut and self.has_run_out:
            self.text = ""

    def num_certain(self, markers: Sequence[str]) -> int:
        """Characters that belong to no marker, complete or growing; at a cap, half a marker is none either."""
        num_held = partial_suffix(self.text, markers)
        if self.is_closed and not (self.is_cut and num_held > 1):
            return len(self.text)
        return len(self.text) - num_held


def partial_suffix(text: str, markers: Sequence[str]) -> int:
    """Length of the longest end of `text` that could be the start of a marker."""
    longest = max((len(marker) for marker in markers), default=0)
    for length in range(min(longest - 1, len(text)), 0, -1):
        end = text[-length:]
        if any(marker.startswith(end) for marker in markers):
            return length
    return 0


def first_marker(text: str, markers: Sequence[str]) -> tuple[int, str] | None:
    """Where the earliest marker stands; at the same place the longest wins."""
    found = [(position, -len(marker), marker) for marker in markers if (position := text.find(marker)) >= 0]
    if not found:
        return None
    position, _, marker = min(found)
    return position, marker


def stream_until(source: Source, markers: Sequence[str], wrap: Callable[[str], Piece]) -> Steps[str | None]:
    """Pass text on as it comes, up to a marker, which is read too and returned; None at the end of the text."""
    while True:
        hit = first_marker(source.text, markers)
        # A longer marker may still be growing at an earlier place than the one that is complete.
        safe = hit[0] if hit else source.num_certain(markers)
        if safe:
            yield wrap(source.take(safe))
        if hit:
            return source.take(len(hit[1]))
        if source.is_closed:
            source.text = ""
            return None
        yield None


def read_name(source: Source, ends: Sequence[str]) -> Steps[str | None]:
    """Hold back a short name up to one of `ends`, which stays unread. None, and nothing read, if it isn't one."""
    while True:
        hit = first_marker(source.text, ends)
        name = source.text[: hit[0]] if hit else source.text
        # Bounded, so that a tag in prose doesn't hold the rest of the answer back.
        if len(name) > MAX_NAME_CHARS or "\n" in name.strip():
            source.has_run_out = False
            return None
        if hit:
            return source.take(hit[0])
        if source.runs_out():
            return None
        yield None


def read_text(source: Source, end: str) -> Steps[str | None]:
    """Hold text back up to `end`, which is read too; None, and nothing read, if the answer ends before it."""
    while True:
        position = source.text.find(end)
        if position >= 0:
            text = source.take(position)
            source.take(len(end))
            return text
        if source.runs_out():
            return None
        yield None


def skip_space(source: Source) -> Steps[None]:
    """Read white space, waiting until something else comes or the text ends."""
    while True:
        rest = source.text.lstrip()
        source.take(len(source.text) - len(rest))
        if rest or source.is_closed:
            return
        yield None


def try_read(source: Source, markers: Sequence[str]) -> Steps[str | None]:
    """Read one of the markers if the text goes on with it; otherwise read nothing and return None."""
    while True:
        for marker in sorted(markers, key=len, reverse=True):
            if source.text.startswith(marker):
                return source.take(len(marker))
        source.has_run_out = False
        could_grow = any(marker.startswith(source.text) for marker in markers)
        if not could_grow or source.runs_out():
            return None
        yield None


def skip_space_before(source: Source, markers: Sequence[str]) -> Steps[str | None]:
    """Read white space and one of the markers; if none follows, read nothing and return None."""
    while True:
        rest = source.text.lstrip()
        for marker in markers:
            if rest.startswith(marker):
                source.take(len(source.text) - len(rest) + len(marker))
                return marker
        source.has_run_out = False
        if not any(marker.startswith(rest) for marker in markers) or source.runs_out():
            return None
        yield None


def peek(source: Source, num_chars: int) -> Steps[str]:
    """The next characters without reading them; fewer at the end of the text."""
    while len(source.text) < num_chars and not source.runs_out():
        yield None
    return source.text[:num_chars]
