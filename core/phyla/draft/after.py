"""A constraint that waits: free text until a marker has been emitted, the grammar from there on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from phyla.sampling.token_mask import all_allowed, without

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from phyla.draft.constraint import Constraint


def after(marker: Sequence[int], constraint: Constraint, *, eos_ids: Iterable[int], vocab_size: int) -> Constraint:
    """`constraint`, but not before `marker` was emitted: how a structured answer follows open reasoning.

    Until then everything is allowed but end of sequence, so that a row can't end without its answer.

    Args:
        marker: ids that end the reasoning, in order; empty means that there is nothing to wait for.
        constraint: a fresh matcher; its first token is the one after the marker.
        eos_ids: held back while waiting.
        vocab_size: ids that have a logit.
    """
    if not marker:
        return constraint
    return _After(tuple(marker), constraint, without(all_allowed(vocab_size), eos_ids))


class _After:
    def __init__(self, marker: tuple[int, ...], inner: Constraint, waiting: npt.NDArray[np.int32]) -> None:
        self._marker = marker
        self._inner = inner
        self._waiting = waiting
        self._free: list[int] = []
        """Tokens up to the marker's last one: a rollback may need all of them."""

        self._num_inner = 0

    def mask(self) -> npt.NDArray[np.int32] | None:
        return self._inner.mask() if self._is_active else self._waiting

    def accept(self, token_id: int) -> None:
        if self._is_active:
            self._inner.accept(token_id)
            self._num_inner += 1
        else:
            self._free.append(token_id)

    def rollback(self, num_tokens: int) -> None:
        num_inner = min(num_tokens, self._num_inner)
        if num_inner:
            self._inner.rollback(num_inner)
            self._num_inner -= num_inner
        num_free = num_tokens - num_inner
        if num_free:
            del self._free[-num_free:]

    def forced(self) -> Sequence[int]:
        return self._inner.forced() if self._is_active else ()

    @property
    def is_satisfied(self) -> bool:
        return self._is_active and self._inner.is_satisfied

    @property
    def _is_active(self) -> bool:
        return tuple(self._free[-len(self._marker) :]) == self._marker
