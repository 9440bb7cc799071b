"""How one request wants its tokens chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class SamplingParams:
    """Values after defaults are applied; the front end has checked their ranges.

    Source:
        Order and formulas as mlx-lm's `make_sampler` and `make_logits_processors` (0.32).
    """

    temperature: float = 0.0
    """0 is greedy: the lowest id among the largest log-probabilities."""

    top_p: float = 0.0
    """Nucleus mass, (0, 1); 0 and 1 are off."""

    top_k: int = 0
    """Keep the k most likely; 0 is off."""

    min_p: float = 0.0
    """Drop tokens less likely than this share of the most likely one; 0 is off."""

    xtc_probability: float = 0.0
    xtc_threshold: float = 0.0
    xtc_special_ids: tuple[int, ...] = ()
    """Ids that XTC never removes: end of sequence and the bare newline."""

    repetition_penalty: float = 0.0
    """Divides positive and multiplies negative logits of recent ids; 0 and 1 are off."""

    repetition_context_size: int = 20
    """Recent ids looked at; 0 is the whole history, prompt included."""

    presence_penalty: float = 0.0
    presence_context_size: int = 20
    frequency_penalty: float = 0.0
    frequency_context_size: int = 20

    logit_bias: Mapping[int, float] = field(default_factory=dict)

    seed: int | None = None
    """None draws a fresh seed when the request is admitted."""

    min_tokens: int = 0
    """End of sequence can't be chosen before this many tokens were emitted."""

    ignore_eos: bool = False

    num_logprobs: int | None = None
    """None reports none; 0 the chosen token's; k also the k most likely."""

    processors: tuple[str, ...] = ()
    """Names from the `phyla_samplers` hook, applied after the penalties in this order."""
