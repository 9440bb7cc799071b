"""One decoder for the plain architectures: a row of a table says how each of them differs.

Covers llama (and what is llama under another name: mistral, iquestcoder, xverse), qwen2 and qwen3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from phyla import Claim, Family, Settings, hookimpl

from phyla_universal.descriptor import descriptor_of

if TYPE_CHECKING:
    from phyla import Checkpoint, LoadOptions, ModelBinding, ModelFacts

phyla_api = 1


class UniversalFamily:
    """Claims the architectures of the table; any other family that knows a model more closely goes first."""

    name = "universal"

    def claim(self, config: Mapping[str, Any]) -> Claim:
        return Claim.NONE if descriptor_of(config) is None else Claim.CLOSE

    def describe(self, checkpoint: Checkpoint) -> ModelFacts:
        from phyla_universal.describe import describe

        return describe(checkpoint)

    def bind(self, checkpoint: Checkpoint, facts: ModelFacts, options: LoadOptions) -> ModelBinding:
        from phyla_universal.decoder import load_decoder

        return load_decoder(checkpoint, facts, options)


@hookimpl
def phyla_families(settings: Settings) -> list[Family]:
    return [UniversalFamily()]
