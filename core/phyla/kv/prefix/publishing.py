"""From a row to what the index keeps: owned, evaluated, of exactly the used length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from phyla.kv.group import loop_of
from phyla.kv.prefix.boundaries import Boundary, BoundaryKind, Place
from phyla.kv.row_state import TARGET, RowState

if TYPE_CHECKING:
    from phyla.kv.state import LayerState

StateT = TypeVar("StateT", bound="LayerState")


@dataclass(frozen=True)
class DraftPart:
    """What a stored draft set needs of whoever takes it over."""

    identity: str
    """Drafter weights, settings and scheme: a set only serves its own kind."""

    lag: int = 0
    """Tokens by which it is behind the target's."""


@dataclass(frozen=True)
class Published:
    """What a row offers to the index."""

    row: RowState
    """No window is open in it."""

    has_finished: bool = False
    """The row is moved: nobody else steps it again. Otherwise it lives on and what is kept is copied."""

    boundaries: Sequence[Boundary] = ()
    is_exact: bool = False
    """Every token in it was computed on the exact route."""

    drafts: Mapping[str, DraftPart] = field(default_factory=dict)
    """By name of the row's draft sets; one that isn't named here is dropped."""

    session_id: str | None = None


def boundary_here(row: RowState, kind: BoundaryKind) -> Boundary:
    """The layers that forget, as they stand. Costs nothing; the row goes on."""
    states = {place: state.clone() for place, state in _forgetful(row).items()}
    return Boundary(row.num_tokens, states, kind)


def boundary_in_window(row: RowState, num_kept: int, num_tokens: int, kind: BoundaryKind) -> Boundary:
    """The layers that forget as they were `num_kept` tokens into the open window, at `num_tokens` of the row."""
    states = {place: state.clone_at(row.num_kept_of(*place, num_kept)) for place, state in _forgetful(row).items()}
    return Boundary(num_tokens, states, kind)


def owned_row(published: Published) -> RowState:
    """The row that is kept: evaluated, with the target's set and the draft sets that were named.

    A finished row's states are taken as they are; of one that lives on, exactly the used length is copied.
    """
    row = published.row
    names = [name for name in row.sets if name == TARGET or name in published.drafts]
    keep_as_is = published.has_finished
    sets = {name: [state if keep_as_is else _compact(state) for state in row.sets[name]] for name in names}
    _evaluate([state for states in sets.values() for state in states])
    return RowState(sets, row.tokens)


def owned_boundary(boundary: Boundary, is_exact: bool) -> Boundary:
    """The boundary without anybody else's bytes: evaluated copies of exactly the used length."""
    states = {place: _compact(state) for place, state in boundary.states.items()}
    _evaluate(list(states.values()))
    return Boundary(boundary.num_tokens, states, boundary.kind, is_exact)


def _forgetful(row: RowState) -> dict[Place, LayerState]:
    return {
        (name, place): state for name, states in row.sets.items() for place, state in enumerate(states) if state.forgets
    }


def _compact(state: StateT) -> StateT:
    copy = state.clone(0)
    copy.adopt(state.arrays())
    return copy


def _evaluate(states: Sequence[LayerState]) -> None:
    import mlx.core as mx

    mx.eval([array for state in states for array in loop_of([state]).evaluate()])
