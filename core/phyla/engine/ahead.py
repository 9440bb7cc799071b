"""Windows that are started before their tokens are known: the device has them when the host has read the ones before.

A round can't begin before the host has read the one before, so that nothing on the device hides what starting its
kernels takes. Started ahead, its first layers wait on the device for what the host finds, and begin as soon as it does.
Rows that change, or don't go on, cost what those layers take; what they store lies behind every row's end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import mlx.core as mx

from phyla.engine.replay import Piece, Replay, StepArrays

if TYPE_CHECKING:
    from phyla.engine.compiled_step import CompiledSteps
    from phyla.engine.late_input import LateInputs
    from phyla.engine.party import Party
    from phyla.engine.row import Row
    from phyla.engine.traced_span import UnderWay
    from phyla.kv.stacked.bay import Bay


class StepAhead:
    """A window whose first layers wait for its tokens.

    Args:
        pieces: of a trace that is known to work.
        under_way: where its rows sit. What its first layers store if nothing is ever posted lies behind what the bays
            count as stored now: there must be room for that.
        width: of the window.
        late_inputs: opens its inputs.
    """

    def __init__(self, pieces: Sequence[Piece], under_way: UnderWay, width: int, late_inputs: LateInputs) -> None:
        self.width = width
        self._bays = under_way.bays
        num_ids = width * sum(bay.seating.num_seats for bay in self._bays)
        stored = self._stored()
        self.is_posted = False
        self._late = late_inputs.open([*[0] * num_ids, *stored, *stored])
        self._replay: Replay | None = Replay(
            pieces,
            under_way,
            [layer.evaluate() for layer in under_way.layers],
            _split(self._late.numbers, self._bays, width),
        )
        self._replay.front(dispatches=self._late.is_dispatchable)

    def post(self, ids: Sequence[Sequence[int]], offsets: Sequence[int]) -> None:
        """Give the device what it waits for.

        Args:
            ids: (B, L)
            offsets: (B,), the position of each row's first token.
        """
        self.is_posted = True
        self._late.post([*(token_id for row in ids for token_id in row), *offsets, *self._stored()])

    def logits(self) -> mx.array:
        """(B * L, V) of the window that was posted, undispatched. Once."""
        assert self.is_posted, "the device waits for tokens"
        assert self._replay is not None, "they are asked for once"
        logits = self._replay.rest()
        # It holds what the layers store: the next window, started while this one is waited for, is to write into that.
        self._replay = None
        return logits

    def drop(self) -> None:
        """Let the device go on: the window isn't wanted."""
        if not self.is_posted:
            stored = self._stored()
            self.post([[0] * self.width] * len(stored), stored)

    def was_late(self) -> bool:
        """Waits for the first layers: whether they ran before their tokens came."""
        return self._late.was_late()

    def _stored(self) -> list[int]:
        return [count for bay in self._bays for count in bay.num_tokens]


def _split(numbers: mx.array, bays: Sequence[Bay], width: int) -> StepArrays:
    counts = [bay.seating.num_seats for bay in bays]
    num_rows = sum(counts)
    num_ids = num_rows * width
    starts, first = [], num_ids + num_rows
    for count in counts:
        starts.append(numbers[first : first + count])
        first += count
    return StepArrays(numbers[:num_ids].reshape(num_rows, width), numbers[num_ids : num_ids + num_rows], starts)


@dataclass(frozen=True)
class AheadCounts:
    """Windows since the start; an immutable value, replaced whole, so that any thread reads a consistent one."""

    started: int = 0
    """Before their tokens were known."""

    unused: int = 0
    """Their rows changed, ended or had something else to do."""

    late: int = 0
    """The device didn't wait any longer; they were computed again."""


class WindowsAhead:
    """Starts windows ahead, one at a time. Belongs to the engine thread.

    Whoever asks the device for anything but the window that waits, or for what comes behind it, drops that first.

    Args:
        compiled: the traces; None: nothing is ever started ahead.
        late_inputs: opens a window's inputs; None: as without traces.
    """

    def __init__(self, compiled: CompiledSteps | None = None, late_inputs: LateInputs | None = None) -> None:
        self._compiled = compiled
        self._late_inputs = late_inputs
        self._step: StepAhead | None = None
        self._rows: list[Row] = []
        self.counts = AheadCounts()

    def begin(self, party: Party, width: int) -> None:
        """Start a window of these rows, who go on from what was stored for them or from less; where that can be."""
        assert self._step is None, "one at a time"
        # Whether posted or not, it stores within the room that each kind of layer has behind a row's end.
        if self._compiled is None or self._late_inputs is None:
            return
        if not all(bay.fits(2 * width) for bay in party.bays):
            return
        self._step = self._compiled.begun(width, party.bays, party.states(), self._late_inputs)
        if self._step is not None:
            self._rows = list(party.rows)
            self.counts = replace(self.counts, started=self.counts.started + 1)

    def waits_for(self, rows: Sequence[Row]) -> bool:
        """Whether a window of exactly these rows, in any order, waits."""
        return self._step is not None and {id(row) for row in rows} == {id(row) for row in self._rows}

    def width_for(self, rows: Sequence[Row], at_least: int) -> int | None:
        """Positions of the window that waits for these rows, if it has so many; any other is dropped."""
        if self._step is not None and self.waits_for(rows) and self._step.width >= at_least:
            return self._step.width
        self.drop()
        return None

    def post(self, ids: Sequence[Sequence[int]], offsets: Sequence[int]) -> None:
        """Give the window that waits its tokens; it is still to be taken. See `StepAhead.post`."""
        assert self._step is not None, "nothing waits"
        self._step.post(ids, offsets)

    def taken(self) -> StepAhead | None:
        """The window that waits; from now on it is the caller's."""
        step, self._step, self._rows = self._step, None, []
        return step

    def was_late(self, step: StepAhead) -> bool:
        """See `StepAhead.was_late`."""
        is_late = step.was_late()
        if is_late:
            self.counts = replace(self.counts, late=self.counts.late + 1)
        return is_late

    def drop(self) -> None:
        """Let go of the window that waits, if one does."""
        step = self.taken()
        if step is not None:
            step.drop()
            self.counts = replace(self.counts, unused=self.counts.unused + 1)

    def close(self) -> None:
        """Nothing is started any more."""
        self.drop()
        if self._late_inputs is not None:
            mx.synchronize()
            self._late_inputs.close()
            self._late_inputs = None
