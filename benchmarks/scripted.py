"""A drafter that is right as often as it is told to be, and a random model whose answers can be known beforehand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import phyla
from phyla.draft import Observed, Span
from phyla.draft.method import DraftFacts, DraftMethod, DraftProvider
from phyla.library import load_with
from phyla.plugins import discover
from phyla.settings import flags_from_options, load_settings

if TYPE_CHECKING:
    import mlx.core as mx
    from phyla.draft.span import SpanSource
    from phyla.kv.state import LayerState
    from phyla.request import Request

Answers = Mapping[tuple[int, ...], Sequence[int]]
"""What plain decoding says to a prompt, by its ids."""

EMBEDDING_SCALE = 1500.0
"""Over the other weights: what a token adds to the residual then stands out from what all layers add."""


def load_scripted(reference: str, answers: Answers, acceptance: float, **options: Any) -> phyla.Model:
    """A model with a drafter that is right so often, at next to no cost; `answers` may be filled in later."""

    @phyla.hookimpl
    def phyla_methods() -> list[DraftMethod]:
        return [DraftMethod(name="scripted", create=lambda target, drafter: ScriptedDrafter(answers, acceptance))]

    manager = discover()
    manager.register("scripted", SimpleNamespace(phyla_api=1, phyla_methods=phyla_methods))
    flags = flags_from_options({"method": "scripted", "draft_adaptive": "off", **options})
    return load_with(reference, manager, load_settings(manager.settings_sections(), flags=flags))


class ScriptedDrafter(DraftProvider):
    """Opens sources that propose the answer, with mistakes."""

    facts = DraftFacts(is_lookup=True)

    def __init__(self, answers: Answers, acceptance: float) -> None:
        self._answers = answers
        self._acceptance = acceptance

    def open(self, request: Request, states: Sequence[LayerState]) -> SpanSource:
        prompt = request.rendered.ids
        answer = self._answers[prompt]
        draw = np.random.default_rng(prompt[:1])
        return ScriptedSource(answer, len(prompt), draw.random(len(answer)) < self._acceptance)


class ScriptedSource:
    """One row's answer and where it will be got wrong."""

    def __init__(self, answer: Sequence[int], num_prompt: int, is_right: Sequence[bool]) -> None:
        self._drafts = [token_id if right else token_id + 1 for token_id, right in zip(answer, is_right, strict=True)]
        self._num_prompt = num_prompt

    def propose(self, history: Sequence[int], room: int) -> Span | None:
        start = len(history) - self._num_prompt
        return Span(tuple(self._drafts[start : start + room]))

    def observe(self, step: Observed) -> None:
        """The next `propose` brings the whole history."""


class Counting:
    """Turns random weights into those of a model that counts: the token after `n` is `n + 1`, by a wide margin.

    With plainly random weights the two likeliest tokens are so close that a pass over several positions says another
    one every dozen tokens in bfloat16, and a script is lost from there on. The work is the same.
    """

    def __init__(self) -> None:
        self._embedding: mx.array | None = None

    def __call__(self, name: str, weights: mx.array) -> mx.array:
        """A tensor as it should be stored; the embedding comes before the output projection."""
        import mlx.core as mx

        if name.endswith("embed_tokens.weight"):
            self._embedding = weights
            return weights * EMBEDDING_SCALE
        if name.endswith("lm_head.weight"):
            assert self._embedding is not None, "a model with an output projection of its own"
            return mx.roll(self._embedding, 1, axis=0)
        return weights
