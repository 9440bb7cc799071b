"""MiniCPM5-1B: a llama by name, known by its shape.

It runs by the same formulas as any llama; what a plain llama's files don't say is here: the dialect of its calls, its
reasoning tags, and that it answers without reasoning unless asked to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from phyla import Claim, Family, Settings, hookimpl

from phyla_minicpm5.shape import is_alike, is_released, odd_keys

if TYPE_CHECKING:
    from phyla import Checkpoint, LoadOptions, ModelBinding, ModelFacts

phyla_api = 1


class MiniCPM5Family:
    """Claims the released model as its own. Another llama of this kind gets it by name, with `--family minicpm5`."""

    name = "minicpm5"

    def claim(self, config: Mapping[str, Any]) -> Claim:
        if is_released(config):
            return Claim.EXACT
        return Claim.ALIKE if is_alike(config) else Claim.NONE

    def why_not(self, config: Mapping[str, Any]) -> str | None:
        """What another kind of llama has that this one hasn't; nothing about what is no llama."""
        odd = odd_keys(config)
        if not odd or "model_type" in odd:
            return None
        return f"{', '.join(map(repr, odd))} would have to be as in docs/families/minicpm5.md"

    def describe(self, checkpoint: Checkpoint) -> ModelFacts:
        from phyla_minicpm5.describe import describe

        return describe(checkpoint)

    def bind(self, checkpoint: Checkpoint, facts: ModelFacts, options: LoadOptions) -> ModelBinding:
        from phyla_minicpm5.decoder import load_decoder

        return load_decoder(checkpoint, facts, options)


@hookimpl
def phyla_families(settings: Settings) -> list[Family]:
    return [MiniCPM5Family()]
