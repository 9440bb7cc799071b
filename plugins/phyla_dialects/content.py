"""Content with calls in it: the loop that the dialects share, and what becomes of a call that isn't one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto

from phyla.output import Piece, TextDelta

from phyla_dialects.calls import Calls
from phyla_dialects.source import Source, Steps, stream_until


class Read(Enum):
    """What became of an attempt to read a call."""

    NOTHING = auto()
    """It is no call to an offered tool, and nothing was said of it: it is text, markers and all."""

    BROKEN = auto()
    """It began, which can't be taken back, and then didn't go on as a call does."""

    WHOLE = auto()


def read_calls(
    source: Source,
    calls: Calls,
    openers: Sequence[str],
    inner: Sequence[str],
    closer: str,
    call: Callable[[str], Steps[Read]],
) -> Steps[None]:
    """Read content to the end of the answer.

    Args:
        source: the answer.
        calls: what `call` tells of.
        openers: markers that a call begins with.
        inner: further markers of a call, which mean nothing outside of one.
        closer: the one of them that ends a call.
        call: reads a call after the opener it is given.
    """
    is_broken = False
    while (
        hit := (yield from stream_until(source, (*openers, *inner) if is_broken else openers, TextDelta))
    ) is not None:
        if hit not in openers:
            # What is left of a broken call is text, without its markers, up to where it closes.
            is_broken = hit != closer
            continue
        source.mark()
        read = yield from _told_whole(source, calls, call(hit)) if calls.are_told_whole else call(hit)
        is_broken = read is Read.BROKEN
        if read is Read.NOTHING:
            yield TextDelta(source.failed(hit))
        else:
            source.drop_unfinished()


def _told_whole(source: Source, calls: Calls, steps: Steps[Read]) -> Steps[Read]:
    """Hold a call back until it is whole, or the cap cut it; one that breaks before was never begun."""
    num_before = calls.num_calls
    held: list[Piece] = []
    while True:
        try:
            piece = next(steps)
        except StopIteration as stop:
            read: Read = stop.value
            break
        if piece is None:
            yield None
        else:
            held.append(piece)
    if read is Read.BROKEN and not (source.is_cut and source.has_run_out):
        calls.num_calls = num_before
        return Read.NOTHING
    yield from held
    return read
