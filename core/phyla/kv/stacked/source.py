"""Where the rows of a bay's seats come from when it is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phyla.kv.state import LayerState


@dataclass(frozen=True)
class Seated:
    """A row that has a seat in another stacked state of the same layer."""

    stack: Any
    """That state."""

    seat: int


def runs(sources: Sequence[Seated | LayerState | None]) -> list[tuple[Any, list[int]] | LayerState | int]:
    """What can be copied at once: `(stack, seats)` of one stack, a resident state, or a number of empty seats."""
    made: list[tuple[Any, list[int]] | LayerState | int] = []
    for kind, group in groupby(sources, key=_kind):
        together = list(group)
        if kind is None:
            made.append(len(together))
        elif isinstance(together[0], Seated):
            made.append((together[0].stack, [one.seat for one in together if isinstance(one, Seated)]))
        else:
            made.extend(one for one in together if one is not None and not isinstance(one, Seated))
    return made


def _kind(source: Seated | LayerState | None) -> int | None:
    if source is None:
        return None
    return id(source.stack) if isinstance(source, Seated) else id(source)
