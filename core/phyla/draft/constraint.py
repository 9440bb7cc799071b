"""What the output of one row must look like, token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np

    from phyla.draft.vocabulary import Vocabulary
    from phyla.kv.scheme import Support
    from phyla.request import ConstraintSpec
    from phyla.tokenizer.tokenizer import Tokenizer


class Constraint(Protocol):
    """The matcher of one row. Host data only.

    `accept` then `rollback(1)` changes nothing. A token that `mask` doesn't allow is never given to `accept`.
    """

    def mask(self) -> np.ndarray | None:
        """(ceil(V / 32),) int32, bit i of word w set where id `32 * w + i` may come next; None allows everything."""
        ...

    def accept(self, token_id: int) -> None:
        """Advance by one emitted token.

        Raises:
            ConstraintError: the token isn't allowed; the row fails alone.
        """
        ...

    def rollback(self, num_tokens: int) -> None:
        """Take back the last `num_tokens` accepted."""
        ...

    def forced(self) -> Sequence[int]:
        """Ids that must come next whatever the model says, tokenisation-safe; empty when there is a choice."""
        ...

    @property
    def is_satisfied(self) -> bool:
        """The output so far is complete; only end of sequence may follow, or the row ends."""
        ...


class CompiledConstraint(Protocol):
    """A compiled grammar: shared by rows, cached by schema hash and tokenizer."""

    @property
    def num_bytes(self) -> int:
        """About what it keeps in memory, its matchers aside."""
        ...

    def open(self) -> Constraint:
        """A fresh matcher at the start."""
        ...


Trial = Callable[[str, str], None]
"""`(kind, source)`: does what is hostile about compiling, and raises ConstraintError where something is wrong."""


@dataclass(frozen=True)
class ConstraintEngine:
    """Compiles constraints, as `phyla_proposers` gives it."""

    name: str
    supports: Callable[[ConstraintSpec], Support]
    """Yes, or the keyword that can't be enforced. Cheap: called before anything is compiled.

    Where there is a trial it is a module-level function too: for a long source it is called in that process.
    """

    compile: Callable[[ConstraintSpec, Tokenizer, frozenset[int]], CompiledConstraint]
    """`(spec, tokenizer, end-of-sequence ids)`; runs off the engine thread; raises ConstraintError."""

    trial: Callable[[Vocabulary], Trial] | None = None
    """Makes ready, in a process that can be killed, what tries constraints out there before they are compiled here.

    A module-level function, found again there by its name. Called once in a process, and what it takes then, imports
    included, is no constraint's to pay. What a trial survives within its time and memory is compiled here, so it must
    cost what compiling costs; an engine without one vouches for its own limits.
    """

    rank: int = 0
    """Among engines that support a spec the highest is chosen under `auto`."""
