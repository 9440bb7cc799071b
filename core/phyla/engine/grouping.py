"""Which group holds the rows of a shared step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from phyla.errors import UsageError
from phyla.kv.group import LoopGroup
from phyla.kv.row_state import TARGET

if TYPE_CHECKING:
    from phyla.kv.group import Group
    from phyla.kv.layer_spec import Layout
    from phyla.kv.row_state import RowState

GroupOption = Literal["auto", "loop", "stacked"]


def shared_group(option: GroupOption, layout: Layout, row: RowState) -> Group:
    """An empty group for rows like this one: stacked unless a layer can't be, or the loop was asked for.

    Args:
        option: `auto` falls back to the loop.
        layout: the target's layers.
        row: resident.

    Raises:
        UsageError: stacking was asked for and a layer can't be stacked.
    """
    reason = why_not_stacked(layout, row)
    if option == "stacked" and reason is not None:
        raise UsageError(f"--group stacked can't run here: {reason} Use --group auto or loop.")
    if option == "loop" or reason is not None:
        return LoopGroup(layout)
    from phyla.kv.stacked.group import StackedGroup

    return StackedGroup(layout)


def why_not_stacked(layout: Layout, row: RowState) -> str | None:
    """What stands in the way of stacking such rows, as a sentence; None if nothing does."""
    from phyla.kv.stacked.seating import Seating

    seating = Seating(1, (0,))
    owning = [layer for layer in layout if layer.owns_state]
    for layer, state in zip(owning, row.sets[TARGET], strict=True):
        if state.stacked(seating) is None:
            return f"layer {layer.index} ({layer.kind}) brings no stacked form with {type(state).__name__}."
    return None
