"""What a family plugin declares."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from phyla.checkpoint import Checkpoint
    from phyla.model.binding import ModelBinding
    from phyla.model.facts import ModelFacts
    from phyla.model.load_options import LoadOptions


class Claim(enum.IntEnum):
    """How well a family knows a config; the highest wins, a tie is an error naming both."""

    NONE = 0
    FALLBACK = 1
    """Can run it through something general."""

    ALIKE = 2
    """Is written for another model, which this one is like: runs it where nobody knows it better, or by name."""

    CLOSE = 3
    """Knows the architecture."""

    EXACT = 4
    """Is written for this very model."""


@runtime_checkable
class Family(Protocol):
    """One family of models. Cheap to make; `bind` imports the heavy modules."""

    @property
    def name(self) -> str: ...

    def claim(self, config: Mapping[str, Any]) -> Claim:
        """How well this family knows the config; looks at nothing else and never raises."""
        ...

    def describe(self, checkpoint: Checkpoint) -> ModelFacts:
        """Facts from config and tensor headers; imports no mlx.

        Raises:
            UnsupportedModel: the config asks for something this family doesn't do; names the key.
            DamagedCheckpoint: the config contradicts itself or the tensors.
        """
        ...

    def bind(self, checkpoint: Checkpoint, facts: ModelFacts, options: LoadOptions) -> ModelBinding:
        """Load the weights and return the runnable model. Called on the engine thread.

        `phyla explain` calls it too, with a checkpoint that ends at the first `load`: what is refused before that, it
        refuses as well.
        """
        ...


@runtime_checkable
class ExplainsItself(Protocol):
    """A family that may know what a user can do about a config it doesn't claim."""

    def why_not(self, config: Mapping[str, Any]) -> str | None:
        """One sentence, or None where nothing can be done."""
        ...
