"""From a step to its logits: built anew, or replayed from a trace where that is faster."""

from __future__ import annotations

import logging
from functools import cache, partial
from typing import TYPE_CHECKING

from phyla.engine.ahead import WindowsAhead
from phyla.engine.compiled_step import CompiledCounts, CompiledSteps
from phyla.engine.early_output import AwaitedReadouts, Readouts, cuda_readouts
from phyla.engine.grouping import Grouping, GroupOption, why_not_stacked
from phyla.engine.late_input import AwaitedInputs, DeferredInputs, LateInputs
from phyla.engine.party import Party
from phyla.errors import BackendError, UsageError

if TYPE_CHECKING:
    import mlx.core as mx

    from phyla.engine.fast_route import CompiledOption, FastRoute
    from phyla.kv.layer_spec import Layout
    from phyla.kv.row_state import RowState
    from phyla.model.binding import ModelBinding
    from phyla.model.step import StepInput

_log = logging.getLogger(__name__)


def check_can_compile(asked: CompiledOption, layout: Layout, row: RowState) -> None:
    """Refuse compiled steps that were asked for where a model has no buffers to trace over.

    Args:
        asked: `--compiled-decode`.
        layout: the target's layers.
        row: resident.

    Raises:
        UsageError: a layer can't be stacked; says which.
    """
    reason = why_not_stacked(layout, row) if asked == "on" else None
    if reason is not None:
        raise UsageError(f"--compiled-decode on can't run here: {reason} Leave it away.")


class Forwarding:
    """Belongs to the engine thread.

    Args:
        binding: the model.
        fast: how shared steps compute; None: the plainest way.
        group: how rows that share steps are stored.
        most_rows: that ever share a step.
    """

    def __init__(
        self, binding: ModelBinding, fast: FastRoute | None, group: GroupOption = "auto", most_rows: int = 8
    ) -> None:
        self._binding = binding
        self._grouping = Grouping(group, most_rows=most_rows)
        self._compiled: CompiledSteps | None = None
        self.ahead = WindowsAhead()
        """Starts windows before their tokens are known."""

        self.readouts: Readouts = AwaitedReadouts()
        """How the host gets what a round drew."""

        if fast is not None:
            # Asked in every step, and a table's answer never changes.
            is_traced = cache(partial(fast.compiles, binding.facts))
            # Steps that are to be traced whatever was measured need buffers to be traced over.
            option = "stacked" if group == "auto" and fast.compiled_decode == "on" else group
            self._grouping = Grouping(option, fast.strategies, most_rows, is_traced)
            self._compiled = CompiledSteps(binding, is_traced, fast.room_bytes)
            if fast.starts_ahead:
                self.ahead = WindowsAhead(self._compiled, _late_inputs(fast))
                self.readouts = _readouts(fast)

    @property
    def compiled_counts(self) -> CompiledCounts:
        """Of traced steps; any thread may look."""
        compiled = self._compiled
        return CompiledCounts() if compiled is None else compiled.counts

    @property
    def keeps_lone_rows_apart(self) -> bool:
        """See `Grouping`."""
        return self._grouping.keeps_lone_rows_apart

    def traces_alone(self, row: RowState) -> bool:
        """Whether a lone row, resident here, would be traced on the fast route."""
        if self._compiled is None or not self._compiled.takes(1):
            return False
        return self._grouping.why_not_stacked(self._binding.facts.layout, row) is None

    def shared_party(self, like: RowState) -> Party:
        """An empty common group for rows like this resident one."""
        return Party(self._grouping.group(self._binding.facts.layout, like))

    def logits(self, step: StepInput, party: Party, *, is_awaited: bool) -> mx.array:
        """(B, V) logits of a decode step; nothing is evaluated unless a trace has to be tried.

        Args:
            step: as it would be computed eagerly.
            party: whose it is.
            is_awaited: nothing is under way on the device that hides the host's work.
        """
        replayed = self.replayed(step, party, is_awaited=is_awaited)
        if replayed is not None:
            return replayed
        return self._binding.logits_of(self._binding.forward(step, party.states()).hidden, step.route).squeeze(0)

    def replayed(self, step: StepInput, party: Party, *, is_awaited: bool) -> mx.array | None:
        """(M, V) logits of the positions that a step wants, from a trace; None where it isn't traced."""
        if self._compiled is None or step.route != "fast":
            return None
        logits = self._compiled.run(step, party.bays, party.states(), is_awaited=is_awaited)
        return logits if logits is None or step.wanted is None else logits[step.wanted]

    def close(self) -> None:
        """Traces hold the weights: let go of them."""
        self.ahead.close()
        self.ahead = WindowsAhead()
        self.readouts.close()
        self.readouts = AwaitedReadouts()
        self._compiled = None


def _late_inputs(fast: FastRoute) -> LateInputs | None:
    if not fast.device_waits:
        return DeferredInputs()
    try:
        return AwaitedInputs()
    except (BackendError, RuntimeError) as error:
        _log.warning("Windows aren't started ahead: %s", error)
        return None


def _readouts(fast: FastRoute) -> Readouts:
    if not fast.device_waits:
        return AwaitedReadouts()
    try:
        return cuda_readouts()
    except (BackendError, RuntimeError) as error:
        _log.warning("Rounds are read the slower way: %s", error)
        return AwaitedReadouts()
