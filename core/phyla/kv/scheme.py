"""A way to store keys and values: the declaration a plugin gives, without mlx."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from phyla.backend.device import BackendFacts
    from phyla.checkpoint import Checkpoint
    from phyla.kv.layer_spec import LayerSpec, Layout
    from phyla.kv.state import LayerState

Tier = Literal["L1", "L2", "lab"]


@dataclass(frozen=True)
class Support:
    """Yes, or the reason why not."""

    reason: str | None = None

    def __bool__(self) -> bool:
        return self.reason is None


SUPPORTED = Support()


def refused(reason: str) -> Support:
    """A no with its reason: what stood in the way and what would work."""
    return Support(reason)


@dataclass(frozen=True)
class KVScheme:
    """One configured way to store layers, as `phyla_kv_schemes` gives it or `parse` made it."""

    name: str
    kinds: frozenset[str]
    """Layer kinds it stores; layers of other kinds stay plain and the plan names them."""

    supports: Callable[[LayerSpec, BackendFacts], Support]
    create: Callable[[LayerSpec, BackendFacts, str], LayerState]
    """`(layer, backend, dtype name) -> empty state`; imports its heavy modules here."""

    bytes_per_token: Callable[[LayerSpec, str], float]
    """Stored bytes per token of one layer at a dtype."""

    parse: Callable[[str], KVScheme] | None = None
    """Turns what follows the colon in `name:spec` into a configured scheme, which can `parse` too; None takes no
    spec."""

    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other names users may write, each with the spec it stands for: `{"turbo": "", "4": "4"}`."""

    spec: str = ""
    """The canonical spec of a configured scheme, which `parse` reads back: all that decides its numbers. Part of the
    prefix namespace."""

    for_checkpoint: Callable[[Checkpoint, Layout], KVScheme] | None = None
    """Completes a scheme that follows a file beside the checkpoint, before anything else is asked of it. Raises a
    UsageError where the file is missing or doesn't fit; the completed scheme's spec says which file it was."""

    prefers_fused: bool = False
    """Fuses its attention unless `--fused-sdpa off` was asked for."""

    encodes_from: int | None = None
    """Tokens that a row stores before its steps meet encoded ones; None where storage has one form from the beginning.
    A verify window never crosses the number: its last tokens would be judged by the form before."""

    tier: Tier = "L1"
    description: str = ""

    @property
    def identity(self) -> str:
        """Name and spec, as users write it."""
        return f"{self.name}:{self.spec}" if self.spec else self.name
