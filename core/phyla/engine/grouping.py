"""Which group holds the rows of a shared step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from phyla.errors import UsageError
from phyla.kv.group import LoopGroup
from phyla.kv.row_state import TARGET

if TYPE_CHECKING:
    from collections.abc import Callable

    from phyla.backend.strategy import Strategies
    from phyla.kv.group import Group
    from phyla.kv.layer_spec import Layout
    from phyla.kv.row_state import RowState
    from phyla.plan import RouteOption

GroupOption = Literal["auto", "loop", "stacked"]


def shared_group(
    option: GroupOption,
    layout: Layout,
    row: RowState,
    strategies: Strategies | None = None,
    is_traced: Callable[[int], bool] | None = None,
) -> Group:
    """An empty group for rows like this one: stacked unless a layer can't be, or the loop was asked for.

    Args:
        option: `auto` falls back to the loop.
        layout: the target's layers.
        row: resident.
        strategies: what a stacked group chooses its ways of computing by.
        is_traced: whether steps of so many seats are; None: as if all were.

    Raises:
        UsageError: stacking was asked for and can't be.
    """
    asks_for_loop = strategies is not None and strategies.forced.get("attention") == "loop"
    reason = "--strategy attention=loop asks for the loop." if asks_for_loop else why_not_stacked(layout, row)
    if option == "stacked" and reason is not None:
        raise UsageError(f"--group stacked can't run here: {reason} Use --group auto or loop.")
    if option == "loop" or reason is not None:
        return LoopGroup(layout)
    from phyla.kv.stacked.buckets import Buckets
    from phyla.kv.stacked.group import StackedGroup

    buckets = Buckets() if is_traced is None else Buckets(is_traced=is_traced)
    return StackedGroup(layout, buckets=buckets, strategies=strategies)


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
