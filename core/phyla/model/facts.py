"""What is known about a model from its config and tensor headers alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phyla.kv.layer_spec import Layout
    from phyla.model.step import Tap


@dataclass(frozen=True)
class WeightBytes:
    """Bytes by part, as stored in the checkpoint."""

    resident: int
    experts: int = 0

    @property
    def total(self) -> int:
        return self.resident + self.experts


@dataclass(frozen=True)
class ReasoningMarkers:
    """Spellings around reasoning text."""

    start: str
    end: str


@dataclass(frozen=True)
class ModelFacts:
    """`explain`, scheme and method support, and the memory fit all work from this; nothing is loaded for it."""

    family: str
    architecture: str
    """`model_type` after remapping."""

    layout: Layout
    hidden_size: int
    vocab_size: int
    context_limit: int
    """Tokens of prompt and completion together."""

    weight_bytes: WeightBytes
    stored_dtype: str
    """dtype of the unquantised weights in the checkpoint."""

    quantization: Mapping[str, Any] | None = None
    """The checkpoint's own quantisation section, or None."""

    ignored_tensors: tuple[str, ...] = ()
    """`fnmatch` patterns of tensors that the family knows and doesn't use."""

    taps: tuple[Tap, ...] = ()
    """Hidden rows it can hand to a drafter."""

    heads: tuple[str, ...] = ()
    """Names of the head protocols (`phyla.draft.heads`) the binding offers."""

    eos_ids: tuple[int, ...] = ()
    sampling_defaults: Mapping[str, float] = field(default_factory=dict)
    """From generation_config: temperature, top_p, top_k, repetition_penalty, ..."""

    output_parser: str | None = None
    """Name of a `phyla_output_parsers` entry, or None to choose by chat template."""

    reasoning: ReasoningMarkers | None = None
    default_thinking: bool | None = None
    """None: the template's own default."""

    position_axes: int = 1
    can_cut_forward: bool = True
    """False for a binding that runs whole (the mlx-lm bridge): no layer spans, no taps."""

    scores_are_materialised: bool = False
    """Attention runs unfused in prefill, so that the chunk rule must bound its score workspace."""

    notes: tuple[str, ...] = ()
    """Lines for `explain`: what is covered, what was left out."""
