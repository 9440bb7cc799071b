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
    from phyla.kv.layer_spec import LayerSpec, Layout
    from phyla.kv.state import LayerState
    from phyla.model.binding import ModelBinding
    from phyla.model.facts import ModelFacts
    from phyla.model.load_options import LoadOptions
    from phyla.model.step import Tap
    from phyla.request import Request
    from phyla.settings import PluginSettings


@dataclass(frozen=True)
class DraftTarget:
    """What a method has to fit, from headers alone."""

    checkpoint: Checkpoint
    facts: ModelFacts
    scheme: KVScheme | None = None
    """The one that isn't plain, where there is one."""


@dataclass(frozen=True)
class Drafter:
    """A drafter's checkpoint, from headers alone."""

    checkpoint: Checkpoint
    model: ModelFacts | None = None
    """As the family that knows it describes it, for methods whose drafter is a model of its own."""


@dataclass(frozen=True)
class LoadableDrafter(Drafter):
    """A drafter on the engine thread, where it may be loaded."""

    options: LoadOptions = field(kw_only=True)
    """The target's: the same device, dtype and form of the weights."""

    family_bind: Callable[[], ModelBinding] | None = None

    def bind(self) -> ModelBinding:
        """Load it as a model of its own."""
        assert self.family_bind is not None, "the method doesn't say that its drafter is a model"
        return self.family_bind()

    def new_state(self, layer: LayerSpec) -> LayerState:
        """An empty state of one of its layers: drafters store plainly."""
        from phyla.kv.plain import create_plain

        return create_plain(layer, self.options.backend, self.options.dtype)


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

    follows_from_tokens: bool = False
    """The set can be computed from token ids alone, so that a prefix that came without one costs a second reading,
    and steps needn't be told one by one. Otherwise such a row isn't drafted for."""

    num_recomputed: int = 1
    """Tokens the target forwards again after a prefix hit so that the set can go on."""

    is_lookup: bool = False
    """It proposes on the host at next to no cost, and asks nothing of the device for it: a round may be started there
    before its drafts are known. With adaptive lengths it is tried on plain steps first, by comparing what it would have
    proposed with what came."""

    max_tokens: int = 3
    """Most tokens it proposes at once."""

    identity: str = ""
    """Weights and settings that decide its state; part of a stored draft set's key."""

    notes: tuple[str, ...] = ()
    """What is worth knowing about this pair of models; the plan shows them."""


class DraftProvider(ABC):
    """A loaded drafter, for the server's lifetime, on the engine thread."""

    facts: DraftFacts

    @abstractmethod
    def open(self, request: Request, states: Sequence[LayerState]) -> SpanSource:
        """The source of one row.

        Args:
            request: whose row it is.
            states: the row's draft set: empty, or what came with a prefix, which may be behind the target's. The
                source appends to it, takes back in windows of its own what `observe` doesn't confirm, and leaves none
                open after `observe`.
        """

    def propose(self, rows: Sequence[RowProposal]) -> list[Span | None]:
        """Spans for all rows of a group that have none yet, in one call. Default: one row after the other."""
        return [row.source.propose(row.history, row.room) for row in rows]

    def new_states(self) -> list[LayerState]:
        """An empty draft set; empty list when the method keeps no state of its own."""
        return []


def _supports_everything(target: DraftTarget, drafter: Drafter | None) -> Support:
    return SUPPORTED


def _nothing_to_describe(target: DraftTarget, drafter: Drafter | None) -> DraftFacts:
    return DraftFacts()


@dataclass(frozen=True)
class DraftMethod:
    """One way to draft, as `phyla_methods` gives it."""

    name: str
    create: Callable[[ModelBinding, LoadableDrafter | None], DraftProvider]
    """`(target, drafter) -> provider`, on the engine thread; imports its heavy modules here."""

    detect: Callable[[Checkpoint], bool] = lambda drafter: False
    """Whether a `--draft-model` checkpoint is of this kind."""

    bundled: Callable[[Checkpoint], Checkpoint | None] = lambda target: None
    """A drafter that travels inside the target's checkpoint, or None."""

    describe: Callable[[DraftTarget, Drafter | None], DraftFacts] = field(default=_nothing_to_describe)
    """Facts of the drafter (None: the method needs no artifact) beside that target; headers only."""

    supports: Callable[[DraftTarget, Drafter | None], Support] = field(default=_supports_everything)
    """Yes, or why this drafter can't draft for that target; asked before `describe` and before anything loads."""

    aliases: tuple[str, ...] = ()
    """Other names users may write."""

    needs_drafter: bool = False
    drafter_is_model: bool = False
    """Its drafter is a language model: selection looks for a family that binds it, and `create` gets it bound."""

    settings: type[PluginSettings] | None = None
    """Section of this method alone: its flags are refused where another one drafts, or nothing does."""

    auto: bool = False
    """Whether `auto` may choose it when a drafter was found."""

    tier: Tier = "L1"
    description: str = ""
