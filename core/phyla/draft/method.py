"""What a draft-method plugin declares, and the provider it makes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from phyla.kv.scheme import SUPPORTED, KVScheme, Support, Tier

if TYPE_CHECKING:
    from phyla.checkpoint import Checkpoint
    from phyla.draft.span import RowProposal, Span, SpanSource
    from phyla.kv.layer_spec import Layout
    from phyla.kv.state import LayerState
    from phyla.model.binding import ModelBinding
    from phyla.model.facts import ModelFacts
    from phyla.model.step import Tap
    from phyla.request import Request


@dataclass(frozen=True)
class DraftFacts:
    """A drafter from its headers alone."""

    layout: Layout = ()
    """Layers of the draft set that travels with each row; empty when it keeps none."""

    weight_bytes: int = 0
    taps: tuple[Tap, ...] = ()
    """Hidden rows of the target that `observe` needs."""

    heads: tuple[str, ...] = ()
    """Head protocols (`phyla.draft.heads`) that the target must offer."""

    lag: int = 0
    """Tokens by which the draft set is behind the target's after a step."""

    num_recomputed: int = 1
    """Tokens the target forwards again after a prefix hit so that the set can go on."""

    max_tokens: int = 3
    """Most tokens it proposes at once."""

    identity: str = ""
    """Weights and settings that decide its state; part of a stored draft set's key."""


class DraftProvider(ABC):
    """A loaded drafter, for the server's lifetime, on the engine thread."""

    facts: DraftFacts

    @abstractmethod
    def open(self, request: Request, states: Sequence[LayerState]) -> SpanSource:
        """The source of one row.

        Args:
            request: whose row it is.
            states: the row's draft set: empty, or adopted from a prefix hit.
        """

    def propose(self, rows: Sequence[RowProposal]) -> list[Span | None]:
        """Spans for all rows of a group that have none yet, in one call. Default: one row after the other."""
        return [row.source.propose(row.history, row.room) for row in rows]

    def new_states(self) -> list[LayerState]:
        """An empty draft set; empty list when the method keeps no state of its own."""
        return []


def _supports_everything(facts: ModelFacts, scheme: KVScheme | None) -> Support:
    return SUPPORTED


def _nothing_to_describe(drafter: Checkpoint | None) -> DraftFacts:
    return DraftFacts()


@dataclass(frozen=True)
class DraftMethod:
    """One way to draft, as `phyla_methods` gives it."""

    name: str
    create: Callable[[ModelBinding, Checkpoint | None], DraftProvider]
    """`(target, drafter) -> provider`, on the engine thread; imports its heavy modules here."""

    detect: Callable[[Checkpoint], bool] = lambda drafter: False
    """Whether a `--draft-model` checkpoint is of this kind."""

    bundled: Callable[[Checkpoint], Checkpoint | None] = lambda target: None
    """A drafter that travels inside the target's checkpoint, or None."""

    describe: Callable[[Checkpoint | None], DraftFacts] = field(default=_nothing_to_describe)
    """Facts of the drafter (None: the method needs no artifact); headers only."""

    supports: Callable[[ModelFacts, KVScheme | None], Support] = field(default=_supports_everything)
    aliases: tuple[str, ...] = ()
    """Other names users may write."""

    needs_drafter: bool = False
    auto: bool = False
    """Whether `auto` may choose it when a drafter was found."""

    tier: Tier = "L1"
    description: str = ""
