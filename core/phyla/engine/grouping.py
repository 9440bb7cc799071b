"""Which group holds the rows of a shared step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from phyla.engine.geometry import TYPICAL_STORED, typical_attending
from phyla.errors import UsageError
from phyla.kv.group import LoopGroup
from phyla.kv.group_geometry import attention_geometry, usable_attention
from phyla.kv.row_state import TARGET

if TYPE_CHECKING:
    from collections.abc import Callable

    from phyla.backend.strategy import Strategies
    from phyla.kv.group import Group
    from phyla.kv.layer_spec import Layout
    from phyla.kv.row_state import RowState
    from phyla.plan import RouteOption

GroupOption = Literal["auto", "loop", "stacked"]


@dataclass(frozen=True)
class Grouping:
    """What decides about the common group."""

    option: GroupOption = "auto"
    strategies: Strategies | None = None
    """What a stacked group chooses its ways of computing by, and whether the loop is faster than all of them."""

    most_rows: int = 8
    """That ever share a step."""

    is_traced: Callable[[int], bool] | None = None
    """Whether steps of so many seats are; None: as if all were."""

    def group(self, layout: Layout, row: RowState) -> Group:
        """An empty group for rows like this resident one: `auto` stacks them if it can and nothing says not to.

        Raises:
            UsageError: stacking was asked for and can't be.
        """
        reason = self.why_not_stacked(layout, row)
        if self.option == "stacked" and reason is not None:
            raise UsageError(f"--group stacked can't run here: {reason} Use --group auto or loop.")
        if reason is not None:
            return LoopGroup(layout)
        from phyla.kv.stacked.buckets import Buckets
        from phyla.kv.stacked.group import StackedGroup

        buckets = Buckets() if self.is_traced is None else Buckets(is_traced=self.is_traced)
        return StackedGroup(layout, buckets=buckets, strategies=self.strategies)

    def why_not_stacked(self, layout: Layout, row: RowState) -> str | None:
        """What stands in the way of stacking rows like this resident one, as a sentence; None if nothing does."""
        if self.option == "loop":
            return "--group loop asks for the loop."
        return self._asks_for_loop(layout) or why_not_stacked(layout, row)

    @property
    def keeps_lone_rows_apart(self) -> bool:
        """Whether a row that has never shared a step keeps its own storage until it does: it then attends over exactly
        its own columns, and nothing is copied. Where its step is traced it needs a bay to be traced over.
        """
        return self.option == "auto" and self.is_traced is not None and not self.is_traced(1)

    def _asks_for_loop(self, layout: Layout) -> str | None:
        """A strategy that was forced, or measured where the choice is open, as a sentence."""
        attending = typical_attending(layout)
        if self.strategies is None or attending is None:
            return None
        if self.strategies.forced.get("attention") == "loop":
            return "--strategy attention=loop asks for the loop."
        geometry = attention_geometry(attending, self.most_rows, TYPICAL_STORED)
        usable = usable_attention(attending, is_capped=attending.softcap is not None, is_stacked=False)
        chosen = self.strategies.choose(geometry, usable)
        is_open = self.option == "auto" and chosen.name == "loop"
        return f"the loop is faster: {chosen.reason}." if is_open else None


def shares_steps(route: RouteOption, batch: int) -> bool:
    """Whether rows ever step together."""
    return route == "fast" or (route == "auto" and batch > 1)


def why_not_stacked(layout: Layout, row: RowState) -> str | None:
    """What stands in the way of stacking such rows, as a sentence; None if nothing does."""
    from phyla.kv.stacked.seating import Seating

    seating = Seating(1, (0,))
    owning = [layer for layer in layout if layer.owns_state]
    for layer, state in zip(owning, row.sets[TARGET], strict=True):
        if state.stacked(seating) is None:
            return f"layer {layer.index} ({layer.kind}) brings no stacked form with {type(state).__name__}."
    return None
