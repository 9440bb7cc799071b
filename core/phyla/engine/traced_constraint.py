"""A constraint that writes down how it is advanced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from phyla.draft.constraint import Constraint
    from phyla.engine.scheduler import RowKey
    from phyla.engine.trace import Trace


class TracedConstraint:
    """Does what `inner` does; a line for each advance, refusal and rollback, with token ids and never text."""

    def __init__(self, inner: Constraint, key: RowKey, trace: Trace) -> None:
        self._inner = inner
        self._key = key
        self._trace = trace
        self._line("opened")

    def mask(self) -> np.ndarray | None:
        return self._inner.mask()

    def accept(self, token_id: int) -> None:
        try:
            self._inner.accept(token_id)
        except Exception as error:
            self._line("refused", token=token_id, error=type(error).__name__)
            raise
        self._line("advanced", token=token_id, is_satisfied=self._inner.is_satisfied)

    def rollback(self, num_tokens: int) -> None:
        self._inner.rollback(num_tokens)
        self._line("rolled back", tokens=num_tokens)

    def forced(self) -> Sequence[int]:
        return self._inner.forced()

    @property
    def is_satisfied(self) -> bool:
        return self._inner.is_satisfied

    def _line(self, event: str, **facts: object) -> None:
        self._trace.line("grammar", event, request=self._key.request_id, sample=self._key.sample, **facts)
