"""Qwen3.5: gated delta layers, every few of them a full attention layer with an output gate; dense or with experts.

The recurrent layers keep a state of fixed size instead of keys and values. It can't be cut back, only replayed from
before a window, or taken up again where it was kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from phyla import Claim, Family, Settings, hookimpl

if TYPE_CHECKING:
    from phyla import Checkpoint, LoadOptions, ModelBinding, ModelFacts

phyla_api = 1

MODEL_TYPES = frozenset({"qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"})


class Qwen35Family:
    """Claims the language models of the series; their draft heads (`qwen3_5_mtp`) aren't models of their own."""

    name = "qwen35"

    def claim(self, config: Mapping[str, Any]) -> Claim:
        return Claim.EXACT if config.get("model_type") in MODEL_TYPES else Claim.NONE

    def describe(self, checkpoint: Checkpoint) -> ModelFacts:
        from phyla_qwen35.describe import describe

        return describe(checkpoint)

    def bind(self, checkpoint: Checkpoint, facts: ModelFacts, options: LoadOptions) -> ModelBinding:
        from phyla_qwen35.decoder import load_decoder

        return load_decoder(checkpoint, facts, options)


@hookimpl
def phyla_families(settings: Settings) -> list[Family]:
    return [Qwen35Family()]
