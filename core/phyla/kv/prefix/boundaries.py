"""Lengths at which layers that forget can be gone back to, and which of them pay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from phyla.kv.state import LayerState

BoundaryKind = Literal["branch", "stable", "end", "chunk"]
"""Why a boundary was retained, most telling first: another prompt left this one here; the template renders up to here
again next turn; the prompt or the answer ended here; a prefill chunk did."""

_TELLING: Mapping[BoundaryKind, int] = {"branch": 3, "stable": 2, "end": 1, "chunk": 0}

Place = tuple[str, int]
"""Name of a row's set and the index of a state in it."""


@dataclass
class Boundary:
    """Owned states, at one length, of the layers that can't be wound back to it."""

    num_tokens: int
    states: Mapping[Place, LayerState]
    kind: BoundaryKind = "chunk"
    is_exact: bool = False
    """Computed on the exact route; set by whoever publishes."""

    num_uses: int = field(default=0, compare=False)

    @property
    def owned_bytes(self) -> int:
        return sum(state.owned_bytes for state in self.states.values())


def plan_boundaries(
    *,
    num_cached: int,
    num_prompt: int,
    chunk_edges: Iterable[int] = (),
    stable_boundary: int | None = None,
    branch: int | None = None,
) -> list[tuple[int, BoundaryKind]]:
    """Where to photograph layers that forget during one prefill, in order.

    Args:
        num_cached: tokens the row starts with.
        num_prompt: tokens of the prompt; the last is always computed again, so nothing is retained behind it.
        chunk_edges: lengths at which prefill chunks end.
        stable_boundary: tokens that the next turn renders again.
        branch: tokens that an earlier prompt shares with this one, where reuse would have ended had anything been
            retained there.
    """
    last = num_prompt - 1
    planned: dict[int, BoundaryKind] = {}
    for edge in _spread(edge for edge in chunk_edges if num_cached < edge < last):
        planned[edge] = "chunk"
    telling: list[tuple[int | None, BoundaryKind]] = [(last, "end"), (stable_boundary, "stable"), (branch, "branch")]
    for length, kind in telling:
        if length is not None and num_cached < min(length, last):
            planned[min(length, last)] = kind
    return sorted(planned.items())


def worth_keeping(boundaries: Iterable[Boundary], max_boundaries: int) -> list[Boundary]:
    """The boundaries that pay: used ones, then the most telling kinds, then the longest; in order of length."""

    def worth(boundary: Boundary) -> tuple[int, int, int]:
        return boundary.num_uses, _TELLING[boundary.kind], boundary.num_tokens

    chosen = sorted(boundaries, key=worth, reverse=True)[:max_boundaries]
    return sorted(chosen, key=lambda boundary: boundary.num_tokens)


def _spread(edges: Iterable[int]) -> list[int]:
    """Of all edges the last, and then ever fewer: each gap to the front is at least as long as all that follow."""
    chosen: list[int] = []
    for edge in sorted(edges, reverse=True):
        if len(chosen) < 2 or chosen[-1] - edge >= chosen[0] - chosen[-1]:
            chosen.append(edge)
    return chosen[::-1]
