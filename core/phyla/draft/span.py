"""Everything that proposes tokens: grammars, fills and draft methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import mlx.core as mx

    from phyla.model.step import Tap
    from phyla.sampling.sampler import RowSampler


@dataclass(frozen=True)
class Span:
    """Tokens proposed for one row.

    A verified span is checked by the target; an asserted one enters as context: no sampling, no log-probabilities.
    """

    tokens: tuple[int, ...]
    kind: Literal["verified", "asserted"] = "verified"
    source: str = ""
    """Who proposed it, for `usage` and traces."""

    draft_logits: mx.array | None = None
    """(N, V) logits that each draft was sampled from, after processors; needed for rejection sampling only."""


@dataclass(frozen=True)
class Observed:
    """What became of one row's step: prefill chunks, plain steps and verified windows alike."""

    tokens: tuple[int, ...]
    """Tokens that this step computed and kept, in order: they are in the target's state now."""

    start: int = 0
    """Tokens that the target's state held before: the position of the first of `tokens`."""

    num_drafted: int = 0
    """Of the span that this source proposed; 0 where another's was used."""

    num_accepted: int = 0
    is_prefill: bool = False
    taps: Mapping[Tap, mx.array] = field(default_factory=dict)
    """(1, len(tokens), E) each, where the source declared taps."""


class SpanSource(Protocol):
    """State of one row."""

    def propose(self, history: Sequence[int], room: int) -> Span | None:
        """Tokens that may come next, or None. The returned length is authoritative.

        Args:
            history: prompt and everything emitted. It only ever grows; its last token is pending: emitted, not yet
                computed, and so not yet observed. To look at, not to keep or change.
            room: most tokens to propose.
        """
        ...

    def observe(self, step: Observed) -> None:
        """Called once per step of this row, also when another source's span was used or none."""
        ...


@dataclass(frozen=True)
class RowProposal:
    """One row's question to a draft method's provider: its source and how much it may propose."""

    row: int
    source: SpanSource
    history: Sequence[int]
    room: int
    sampler: RowSampler | None = None
    """How the row's tokens are drawn. A drafter that draws with it, from the key of the same step, proposes what the
    target draws as often as their distributions agree. None is greedy."""

    step: int = 0
    """Tokens drawn before: the step of the first draft in the row's random stream."""


def first_nonempty(sources: Sequence[SpanSource], history: Sequence[int], room: int) -> Span | None:
    """The first source with something to say wins; the others observe."""
    for source in sources:
        span = source.propose(history, room)
        if span is not None and span.tokens:
            return span
    return None
